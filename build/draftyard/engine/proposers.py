"""What every speculator does for the engine: propose, hear what stood, forget."""

from collections.abc import Sequence as Many
from typing import Protocol

from draftyard.engine.acceptance import Draft
from draftyard.engine.sequence import Sequence


class Proposer(Protocol):
    """Proposes tokens for sequences whose last token has no keys and values yet."""

    def propose(self, sequences: Many[Sequence], most: Many[int]) -> list[Draft]:
        """One draft a sequence, of at most `most[i]` tokens (0: none wanted)."""
        ...

    def settle(self, sequence: Sequence, draft: Draft, accepted: int) -> None:
        """Learn how many tokens of the draft stood; the sequence already holds them."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended; its slot goes to another."""
        ...


class NoProposer:
    """Plain decoding."""

    def propose(self, sequences: Many[Sequence], most: Many[int]) -> list[Draft]:
        """Never proposes."""
        return [Draft()] * len(sequences)

    def settle(self, sequence: Sequence, draft: Draft, accepted: int) -> None:
        """Nothing to learn."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing to forget."""
