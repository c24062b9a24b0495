"""Turns a stream of token ids into text without ever splitting a character."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
LONG_WINDOW = 64


class IncrementalDetokeniser:
    """Decodes chunk by chunk: the chunks and the flush, put together, are the text of all ids decoded at once.

    Only a short window is decoded each time: the ids since the last clean border, with the piece of text before it,
    because decoders treat the first token of a run apart (a leading blank is dropped). Text ending in a replacement
    character may be an unfinished character and is held back; so is a trailing run of byte-fallback tokens, which
    such decoders turn into replacement characters as a whole when the run as a whole is not UTF-8. `skipped_ids`
    are those that `decode` leaves out: they do not interrupt a run.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        byte_ids: frozenset[int] = frozenset(),
        skipped_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._decode = decode
        self._byte_ids = byte_ids
        self._run_ids = byte_ids | skipped_ids
        self._window: list[int] = []
        self._emitted = ""
        self._border = 0

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that became certain with these ids; "" when none did."""
        self._window.extend(token_ids)
        settled = self._settled()
        text = self._decode(self._window[:settled])
        certain = text[:-1] if text.endswith(REPLACEMENT) else text
        delta = certain[len(self._emitted) :]
        if not delta:
            return ""
        self._emitted = certain
        if certain == text:
            self._advance(settled)
        elif len(self._window) > LONG_WINDOW:
            self._cut(text)
        return delta

    def flush(self) -> str:
        """The rest, at the end of the stream; an unfinished character comes out as a replacement character."""
        delta = self._decode(self._window)[len(self._emitted) :]
        self._window, self._emitted, self._border = [], "", 0
        return delta

    def _settled(self) -> int:
        """How many ids of the window are not part of a trailing byte-fallback run."""
        settled = end = len(self._window)
        while self._byte_ids and end > 0 and self._window[end - 1] in self._run_ids:
            end -= 1
            if self._window[end] in self._byte_ids:
                settled = end
        return settled

    def _advance(self, settled: int) -> None:
        """Start the window at the clean border before this one; what lies between gave text."""
        if self._border:
            self._window = self._window[self._border :]
            settled -= self._border
            self._emitted = self._decode(self._window[:settled])
        self._border = settled

    def _cut(self, text: str) -> None:
        """Shorten a window that never ends cleanly, where decoding its two parts apart proves to be the same."""
        for keep in range(4, 12):
            head, tail = self._window[:-keep], self._window[-keep:]
            rest = self._decode(tail)
            if len(rest) > 1 and self._decode(head) + rest == text:
                self._window, self._emitted, self._border = tail, rest[:-1], 0
                return
