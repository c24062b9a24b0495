"""Typed access to the string parameters of a model's configuration."""

import json
from pathlib import Path

TRUE_WORDS = frozenset({"true", "1", "yes", "t", "y"})
FALSE_WORDS = frozenset({"false", "0", "no", "f", "n"})


class ModelParameters:
    """The `parameters` block of one config.pbtxt; an empty value or an unfilled placeholder counts as absent.

    A value that is present but cannot be read raises ValueError, so that a typing error stops the load.
    """

    def __init__(self, values: dict[str, str]) -> None:
        self._values = {key: text for key, text in values.items() if text != "" and not text.startswith("${")}

    @classmethod
    def of(cls, model_config: str) -> "ModelParameters":
        """From the JSON text that the server hands to `initialize`."""
        block = json.loads(model_config).get("parameters", {})
        return cls({key: str(entry["string_value"]) for key, entry in block.items()})

    def text(self, key: str, default: str) -> str:
        """The value as it stands."""
        return self._values.get(key, default)

    def required_text(self, key: str) -> str:
        """The value; ValueError when it is absent."""
        if key not in self._values:
            raise ValueError(f"parameter {key} is missing in config.pbtxt")
        return self._values[key]

    def directory(self, key: str) -> Path:
        """An existing directory, relative to the server's working directory."""
        path = Path(self.required_text(key))
        if not path.is_dir():
            raise ValueError(f"parameter {key}: {path} is no directory under the working directory {Path.cwd()}")
        return path

    def flag(self, key: str, default: bool) -> bool:
        """True or false in any of the usual spellings."""
        word = self._values.get(key)
        if word is None:
            return default
        if word.lower() in TRUE_WORDS:
            return True
        if word.lower() in FALSE_WORDS:
            return False
        raise ValueError(f"parameter {key}: {word!r} is neither true nor false")

    def integer(self, key: str, default: int | None) -> int | None:
        """A whole number."""
        word = self._values.get(key)
        if word is None:
            return default
        try:
            return int(word)
        except ValueError:
            raise ValueError(f"parameter {key}: {word!r} is no whole number") from None

    def integers(self, key: str) -> tuple[int, ...]:
        """Whole numbers separated by commas."""
        word = self._values.get(key, "")
        try:
            return tuple(int(part) for part in word.split(",")) if word else ()
        except ValueError:
            raise ValueError(f"parameter {key}: {word!r} is no list of whole numbers") from None

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        word = self._values.get(key)
        try:
            value = default if word is None else float(word)
        except ValueError:
            raise ValueError(f"parameter {key}: {word!r} is no number") from None
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"parameter {key}: {word!r} is not finite")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """Words separated by commas, blanks removed."""
        return tuple(part.strip() for part in self._values.get(key, "").split(",") if part.strip())
