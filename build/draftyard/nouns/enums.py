"""Closed sets of words whose members are strings, also on Python 3.10 (which has no `enum.StrEnum`)."""

from enum import Enum


class StrEnum(str, Enum):
    """A closed set of words; a member prints and serialises as its value."""

    def __str__(self) -> str:
        return str(self.value)
