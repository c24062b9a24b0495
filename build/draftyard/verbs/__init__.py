"""What a person can ask for: one module a command, each opens doors and applies rules."""
