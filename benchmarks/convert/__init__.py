"""Speed and memory of conversion."""
