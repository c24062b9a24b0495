"""Lets `python -m draftyard` do what the `draftyard` command does."""

from draftyard.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
