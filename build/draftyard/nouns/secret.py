"""A value that must not be shown: keys travel in it, and every way to print it renders dots."""

from typing import NoReturn

SHOWN = "••••••"


class Secret:
    """Holds a text; only `reveal` gives it back. It cannot be pickled, and equality is identity."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one place that compares or sends it."""
        return self._text

    def __repr__(self) -> str:
        return SHOWN

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")
