"""Keeps a real server busy for minutes with clients that come, go and vanish."""
