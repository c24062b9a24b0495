"""One page per model architecture: names, shapes and configuration keys."""
