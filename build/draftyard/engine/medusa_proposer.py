"""Proposes with Medusa heads: one static tree of candidates for all sequences at once."""

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from draftyard.engine.acceptance import Draft, Path
from draftyard.engine.medusa_heads import MedusaHeads
from draftyard.engine.medusa_tree import MedusaTree
from draftyard.engine.sequence import Sequence


class MedusaProposer:
    """Certain proposals; keeps, per request, the target's hidden state of the last token in the cache."""

    taps: tuple[int, ...] = (-1,)

    def __init__(self, heads: MedusaHeads, tree: MedusaTree) -> None:
        self._heads = heads
        self._tree = tree
        self._hidden: dict[str, Tensor] = {}

    def propose(self, sequences: Many[Sequence], most: Many[int]) -> list[Draft]:
        """The first nodes of the tree for each sequence; only what these nodes need is computed."""
        wanted = [self._tree.prefix(room, one.depth_room) for one, room in zip(sequences, most, strict=True)]
        active = [one for one, nodes in zip(sequences, wanted, strict=True) if nodes > 0]
        if not active:
            return [Draft()] * len(sequences)
        hidden = torch.stack([self._hidden[one.request.request_id] for one in active])
        candidates = self._heads.candidates(hidden, self._tree.widths(max(wanted)))
        rows = iter(range(len(active)))
        return [self._draft(candidates, next(rows), nodes) if nodes > 0 else Draft() for nodes in wanted]

    def absorb(self, sequence: Sequence, first_position: int, features: Tensor) -> None:
        """Keep the last row: the state behind which the target chose the sequence's last token."""
        self._hidden[sequence.request.request_id] = features[-1].clone()

    def settle(self, sequence: Sequence, draft: Draft, path: Path) -> None:
        """What stood is known from the features."""

    def forget(self, sequence: Sequence) -> None:
        """Drop the hidden state."""
        self._hidden.pop(sequence.request.request_id, None)

    def _draft(self, candidates: Many[Many[Many[int]]], row: int, nodes: int) -> Draft:
        tree = self._tree
        places = zip(tree.depths[:nodes], tree.ranks[:nodes], strict=True)
        token_ids = tuple(candidates[depth][row][rank] for depth, rank in places)
        parents = tree.parents[:nodes]
        # A chain is masked and checked with less work than a tree of one branch.
        return Draft(token_ids, None, None if parents == tuple(range(-1, nodes - 1)) else parents)
