"""One page per way to speculate: tensors, limits, engine and server parameters."""
