"""One page per way to speculate with weights of its own: names, sizes, and where each stored tensor goes."""
