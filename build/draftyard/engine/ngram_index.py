"""N-gram lookup: what followed the last tokens the last time they occurred."""

from collections.abc import Sequence


class NgramIndex:
    """Where each run of `min_match`..`max_match` tokens last ended, kept up to date as tokens arrive.

    Adding a token costs one dictionary entry per length, a proposal one look-up per length: no scan of the text.
    Prompt lookup decoding (Saxena, 2023); longest match first, most recent occurrence.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(f"needs 1 <= min_match <= max_match, not {min_match} and {max_match}")
        self._lengths = range(max_match, min_match - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index `tokens`, which must continue what was indexed before.

        The run at the very end is left out, or the lookup would find itself.
        """
        for end in range(max(self._indexed, 1), len(tokens)):
            for length in self._lengths:
                if length <= end:
                    self._ends[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens))

    def propose(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """At most `most` tokens that followed the longest matching run; () without a match.

        A continuation that reaches the end of the tokens goes on with what it proposed (a repeated pattern repeats).
        """
        self.extend(tokens)
        if most < 1:
            return ()
        for length in self._lengths:
            if length >= len(tokens):
                continue
            end = self._ends.get(tuple(tokens[len(tokens) - length :]))
            if end is not None:
                return continued(tokens, end, most)
        return ()


def continued(tokens: Sequence[int], start: int, most: int) -> tuple[int, ...]:
    """`most` tokens from `start` on, where reading past the end reads what was just read."""
    period = len(tokens) - start
    return tuple(tokens[start + index % period] for index in range(most))
