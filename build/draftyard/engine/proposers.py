"""What every speculator does for the engine: propose, take in features, hear what stood, forget."""

from collections.abc import Sequence as Many
from typing import Protocol

from torch import Tensor

from draftyard.engine.acceptance import Draft, Path
from draftyard.engine.sequence import Sequence


class Proposer(Protocol):
    """Proposes tokens for sequences whose last token has no keys and values yet.

    One step of the engine calls, in this order: `propose` once for all sequences that decode; the target's pass; then
    for each sequence of the pass `absorb` (only with `taps`), `settle` (only after a verification or the prompt's last
    chunk), and `forget` when it ended. A sequence is known by its request's id; its `slot` is its own until `forget`.
    """

    @property
    def taps(self) -> tuple[int, ...]:
        """Features of the target to be handed to `absorb`, as `Decoder.forward_with_features` numbers them."""
        ...

    def propose(self, sequences: Many[Sequence], most: Many[int]) -> list[Draft]:
        """One draft a sequence, of at most `most[i]` nodes (0: none wanted).

        Nodes deeper than `sequence.depth_room` are useless; the engine cuts what is too much.
        """
        ...

    def absorb(self, sequence: Sequence, first_position: int, features: Tensor) -> None:
        """Take in the features [n, len(taps) * hidden] of the tokens that the last pass put into the cache.

        They belong to `sequence.tokens[first_position : first_position + n]`: a chunk of the prompt, or what was the
        last token and the accepted path. The sequence already holds the tokens behind them (one more at least, except
        in the middle of a prompt, where the prompt goes on). Not called for a sequence that has ended.
        A prompt's beginning that lies in the cache already is computed again, unless its sequence never drafts.
        """
        ...

    def settle(self, sequence: Sequence, draft: Draft, path: Path) -> None:
        """Learn which nodes of the draft stood, from the root on; the sequence already holds them and one more."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended; its slot goes to another."""
        ...


class NoProposer:
    """Plain decoding."""

    taps: tuple[int, ...] = ()

    def propose(self, sequences: Many[Sequence], most: Many[int]) -> list[Draft]:
        """Never proposes."""
        return [Draft()] * len(sequences)

    def absorb(self, sequence: Sequence, first_position: int, features: Tensor) -> None:
        """Asks for no features."""

    def settle(self, sequence: Sequence, draft: Draft, path: Path) -> None:
        """Nothing to learn."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing to forget."""
