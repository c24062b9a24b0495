"""Proposes by n-gram lookup: one index a sequence."""

from collections.abc import Sequence as Many

from torch import Tensor

from draftyard.engine.acceptance import Draft, Path
from draftyard.engine.ngram_index import NgramIndex
from draftyard.engine.sequence import Sequence


class NgramProposer:
    """Needs no weights; a certain proposal (point mass)."""

    taps: tuple[int, ...] = ()

    def __init__(self, min_match: int, max_match: int) -> None:
        self._matches = (min_match, max_match)
        self._indices: dict[str, NgramIndex] = {}

    def propose(self, sequences: Many[Sequence], most: Many[int]) -> list[Draft]:
        """Look each sequence's last tokens up in itself."""
        return [
            Draft(self._index(one).propose(one.tokens, min(room, one.depth_room)))
            for one, room in zip(sequences, most, strict=True)
        ]

    def absorb(self, sequence: Sequence, first_position: int, features: Tensor) -> None:
        """Asks for no features."""

    def settle(self, sequence: Sequence, draft: Draft, path: Path) -> None:
        """The index reads the new tokens with the next proposal."""

    def forget(self, sequence: Sequence) -> None:
        """Drop the index."""
        self._indices.pop(sequence.request.request_id, None)

    def _index(self, sequence: Sequence) -> NgramIndex:
        return self._indices.setdefault(sequence.request.request_id, NgramIndex(*self._matches))
