"""Reads typed values out of a parsed `config.json` and collects what is wrong with them."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem

# Far above every published size, and small enough that nothing derived from it exhausts the machine.
LARGEST_COUNT = 1 << 26
MOST_LAYERS = 4096


class ConfigKeys:
    """One parsed config; a null equals an absent key. Reading goes on after a problem, so that all are found."""

    def __init__(self, config: Mapping[str, Json]) -> None:
        """Look at `config`; nothing is copied."""
        self.config = config
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def fail(self, message: str, hint: str) -> None:
        """Remember one problem."""
        self.problems.append(Problem(message, hint))

    def count(self, key: str, default: int | None = None, most: int = LARGEST_COUNT) -> int:
        """A whole number in 1..most; 1 after a problem."""
        value = self.config.get(key)
        if value is None:
            if default is None:
                self.fail(f"config.json has no {key}", f"add {key} to config.json, or fetch the file again")
                return 1
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fail(f"config.json: {key} is {value!r}, not a whole number of at least 1", f"correct {key}")
            return 1
        if value > most:
            self.fail(f"config.json: {key} is {value}, and more than {most} is no model's", f"correct {key}")
            return 1
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A number above 0; 1.0 after a problem."""
        value = self.config.get(key)
        if value is None:
            if default is None:
                self.fail(f"config.json has no {key}", f"add {key} to config.json, or fetch the file again")
                return 1.0
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            self.fail(f"config.json: {key} is {value!r}, not a number above 0", f"correct {key}")
            return 1.0
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(f"config.json: {key} is {value!r}, neither true nor false", f"correct {key}")
            return default
        return value

    def word(self, key: str, default: str) -> str:
        """A text."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fail(f"config.json: {key} is {value!r}, not a text", f"correct {key}")
            return default
        return value

    def only(self, key: str, allowed: tuple[Json, ...], what: str) -> None:
        """The value, when given, must be one of `allowed`; `what` says what it would mean."""
        value = self.config.get(key)
        if value is not None and value not in allowed:
            self.fail(f"config.json: {key} is {value!r}: {what} is not supported", "choose another model")
