"""One sequence on its way to the client: tokens in, text out, and the proof that it ended as it should."""

from collections.abc import Sequence
from dataclasses import dataclass

from detokeniser import IncrementalDetokeniser
from stop_words import StopWordMatcher

LENGTH = "length"
END_ID = "end_id"
STOP_WORDS = "stop_words"
CANCELLED = "cancelled"


class EndedEarly(Exception):
    """The engine's stream ended without a reason that its tokens would show."""


@dataclass(frozen=True)
class Delta:
    """What one engine step adds; `finish` is "" while the sequence goes on."""

    text: str
    token_ids: tuple[int, ...]
    finish: str = ""


@dataclass(frozen=True)
class EndRules:
    """When a sequence is over. `silent_end` allows an engine that leaves the end id out of its output.

    Before `min_tokens` neither end ids nor stop sequences count; stop words in the text do.
    """

    max_tokens: int
    end_ids: frozenset[int]
    stop_sequences: tuple[tuple[int, ...], ...]
    silent_end: bool
    min_tokens: int = 0


class Generation:
    """Follows one sequence; text after the end is never shown, tokens after the end are dropped."""

    def __init__(self, rules: EndRules, detokeniser: IncrementalDetokeniser, matcher: StopWordMatcher) -> None:
        self._rules = rules
        self._detokeniser = detokeniser
        self._matcher = matcher
        self._tail: list[int] = []
        self._longest_stop = max((len(stop) for stop in rules.stop_sequences), default=0)
        self._last_step_tokens = 0
        self.token_count = 0
        self.steps = 0

    def add(self, token_ids: Sequence[int]) -> Delta:
        """One engine step; the last one has a finish reason and brings the text that was held back."""
        self.steps += 1
        self._last_step_tokens = len(token_ids)
        kept, finish = self._cut(token_ids)
        text, kept, stopped = self._read(kept)
        self.token_count += len(kept)
        if stopped:
            return Delta(text, kept, STOP_WORDS)
        if not finish:
            return Delta(text, kept)
        rest, stopped = self._rest()
        return Delta(text + rest, kept, STOP_WORDS if stopped else finish)

    def end(self) -> Delta:
        """The engine's stream is over though no step said so; `EndedEarly` unless an end without token is allowed."""
        silent = self.steps > 0 and (self._last_step_tokens == 0 or self._rules.silent_end)
        if not silent or not self._rules.end_ids:
            raise EndedEarly(f"engine stream ended early after {self.token_count} of {self._rules.max_tokens} tokens")
        text, stopped = self._rest()
        return Delta(text, (), STOP_WORDS if stopped else END_ID)

    def cancel(self) -> Delta:
        """The client has gone: what was held back, and the reason."""
        return Delta(self._rest()[0], (), CANCELLED)

    def _cut(self, token_ids: Sequence[int]) -> tuple[tuple[int, ...], str]:
        """The ids up to the end of the sequence, and the reason when they reach it."""
        for index, token_id in enumerate(token_ids):
            finish = self._finish(token_id, self.token_count + index + 1)
            if finish:
                return tuple(token_ids[: index + 1]), finish
        return tuple(token_ids), ""

    def _finish(self, token_id: int, count: int) -> str:
        if self._longest_stop:
            self._tail = [*self._tail, token_id][-self._longest_stop :]
        if count >= self._rules.min_tokens:
            if token_id in self._rules.end_ids:
                return END_ID
            if any(tuple(self._tail[-len(stop) :]) == stop for stop in self._rules.stop_sequences):
                return STOP_WORDS
        return LENGTH if count >= self._rules.max_tokens else ""

    def _read(self, token_ids: tuple[int, ...]) -> tuple[str, tuple[int, ...], bool]:
        """Text of the ids; with stop words one id at a time, so that the ids end where the stop word does."""
        if not self._matcher.active:
            return self._detokeniser.add(token_ids), token_ids, False
        shown = ""
        for index, token_id in enumerate(token_ids):
            matched = self._matcher.feed(self._detokeniser.add((token_id,)))
            shown += matched.text
            if matched.stopped:
                return shown, token_ids[: index + 1], True
        return shown, token_ids, False

    def _rest(self) -> tuple[str, bool]:
        """What detokeniser and matcher hold; True when a stop word shows in it."""
        matched = self._matcher.feed(self._detokeniser.flush())
        return (matched.text, True) if matched.stopped else (matched.text + self._matcher.flush(), False)
