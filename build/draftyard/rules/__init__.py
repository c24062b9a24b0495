"""Pure functions on values: no I/O, no clock, no environment."""
