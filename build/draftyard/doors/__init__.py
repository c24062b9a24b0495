"""The only modules that touch the world."""
