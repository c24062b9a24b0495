"""Finds stop words in streamed text, also across the borders of its chunks."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Matched:
    """Text that may be shown, and whether a stop word ended it."""

    text: str
    stopped: bool


class StopWordMatcher:
    """Shows text up to the first stop word and nothing after; what may become a stop word is held back."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(word for word in words if word)
        self._longest = max((len(word) for word in self._words), default=0)
        self._held = ""

    @property
    def active(self) -> bool:
        """True when there is anything to look for."""
        return bool(self._words)

    def feed(self, text: str) -> Matched:
        """Add text; when two words begin at different places the earlier one counts."""
        if not self._words:
            return Matched(text, False)
        seen = self._held + text
        cuts = [cut for cut in (seen.find(word) for word in self._words) if cut >= 0]
        if cuts:
            self._held = ""
            return Matched(seen[: min(cuts)], True)
        held = self._possible_prefix(seen)
        self._held = seen[len(seen) - held :]
        return Matched(seen[: len(seen) - held], False)

    def flush(self) -> str:
        """What was held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held

    def _possible_prefix(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop word."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(word.startswith(tail) for word in self._words):
                return length
        return 0
