"""Proposes with a drafter that reads the target's features (EAGLE, EAGLE-3, MTP), one pass a level for everyone."""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftyard.engine.acceptance import Draft, Path
from draftyard.engine.chain_draws import ChainDraws
from draftyard.engine.drafter_network import DrafterNetwork, causal_window, tree_window
from draftyard.engine.runs import Window
from draftyard.engine.sequence import Sequence
from draftyard.engine.tree_growth import Branches, Tree, TreePlan, choose, grow, likeliest

# Features of a long piece of prompt are fed when they come; those of a few tokens wait to share a pass with others.
FED_AT_ONCE = 64


@dataclass(slots=True)
class _Memory:
    """What the drafter knows of a sequence: `rows` in its cache, the state of the last, features that wait behind."""

    rows: int = 0
    state: Tensor | None = None
    waiting: list[Tensor] = field(default_factory=list)

    @property
    def root(self) -> Tensor:
        """The state that drafting starts from."""
        if self.state is None:
            raise ValueError("a sequence drafts before any of its features came")
        return self.state

    @property
    def waiting_rows(self) -> int:
        """Tokens whose features were not fed yet."""
        return sum(map(len, self.waiting))


@dataclass(frozen=True, slots=True)
class _Drafting:
    """One sequence of a drafting pass: nodes and path length wanted at most."""

    sequence: Sequence
    memory: _Memory
    nodes: int
    levels: int

    @property
    def length(self) -> int:
        """Tokens of a chain."""
        return min(self.nodes, self.levels)


class FeatureProposer:
    """Proposes the drafter's likeliest tokens as a chain or a tree; chains of sampled requests are drawn.

    Trees are certain proposals for sampled requests too: they are chosen without the target's random numbers, so that
    acceptance is exact, and several siblings cover what a draw would. Penalties and bad words of such a request are the
    target's matter and cost acceptance only. Rows of drafted nodes are overwritten by the true features of what stood.
    """

    def __init__(self, network: DrafterNetwork, plan: TreePlan, taps: tuple[int, ...]) -> None:
        self.taps = taps
        self._network = network
        self._plan = plan
        self._chain = all(plan.width(level) == 1 for level in range(plan.depth))
        self._memories: dict[str, _Memory] = {}

    def propose(self, sequences: Many[Sequence], most: Many[int]) -> list[Draft]:
        """One tree a sequence; it never has more levels than the sequence has tokens to come."""
        drafting = [
            _Drafting(one, self._memories[one.request.request_id], nodes, min(self._plan.depth, one.depth_room))
            for one, nodes in zip(sequences, most, strict=True)
            if nodes > 0 and one.depth_room > 0
        ]
        drafts = {one.sequence.request.request_id: draft for one, draft in self._grown(drafting)}
        return [drafts.get(one.request.request_id, Draft()) for one in sequences]

    def absorb(self, sequence: Sequence, first_position: int, features: Tensor) -> None:
        """Keep the features until the next drafting, or feed them now when they are many.

        Each token goes with the one behind it, which the sequence already holds.
        """
        if sequence.max_draft_len == 0:
            return
        memory = self._memories.setdefault(sequence.request.request_id, _Memory())
        known = memory.rows + memory.waiting_rows
        if first_position != known:
            raise ValueError(f"features of position {first_position} came where those of {known} follow")
        many = memory.waiting_rows + len(features) >= FED_AT_ONCE
        # What waits must not keep the features of a whole pass in memory.
        memory.waiting.append(features if many else features.clone())
        if many:
            self._feed([(sequence, memory)])

    def settle(self, sequence: Sequence, draft: Draft, path: Path) -> None:
        """What stood is known from the features."""

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known; the rows of the slot are overwritten."""
        self._memories.pop(sequence.request.request_id, None)

    def _grown(self, drafting: Many[_Drafting]) -> list[tuple[_Drafting, Draft]]:
        if not drafting:
            return []
        self._feed([(one.sequence, one.memory) for one in drafting if one.memory.waiting])
        roots = torch.stack([one.memory.root for one in drafting])
        draws = self._draws(drafting) if self._chain else None
        candidates = grow(
            self._plan,
            max(one.length for one in drafting),
            roots,
            self._network.logits,
            lambda branches: self._branch(drafting, branches),
            self._network.vocabulary.token_ids,
            likeliest if draws is None else draws,
        )
        trees = choose(candidates, [one.nodes for one in drafting], [one.levels for one in drafting])
        drawn_from: Many[Many[Tensor]] = [()] * len(drafting) if draws is None else draws.probabilities
        return [(one, _draft(tree, drawn)) for one, tree, drawn in zip(drafting, trees, drawn_from, strict=True)]

    def _draws(self, drafting: Many[_Drafting]) -> ChainDraws:
        sequences, lengths = [one.sequence for one in drafting], [one.length for one in drafting]
        return ChainDraws(sequences, lengths, self._network.vocabulary, self._network.shape.vocabulary)

    def _feed(self, pairs: Many[tuple[Sequence, _Memory]]) -> None:
        """One pass over waiting features, each with the token behind it."""
        if not pairs:
            return
        features: list[Tensor] = []
        token_ids: list[int] = []
        windows: list[Window] = []
        for sequence, memory in pairs:
            count = memory.waiting_rows
            windows.append(causal_window(sequence.slot, memory.rows, count))
            token_ids.extend(sequence.tokens[memory.rows + 1 : memory.rows + 1 + count])
            features.extend(memory.waiting)
            memory.rows += count
            memory.waiting.clear()
        stacked = torch.cat(features)
        ids = torch.tensor(token_ids, device=stacked.device)
        states = self._network.forward(windows, ids, self._network.enter(stacked))
        last = -1
        for (_, memory), window in zip(pairs, windows, strict=True):
            last += len(window.positions)
            memory.state = states[last].clone()

    def _branch(self, drafting: Many[_Drafting], branches: Branches) -> Tensor:
        """Feed one level's nodes of all sequences."""
        windows = [
            tree_window(one.sequence.slot, one.memory.rows, branches.depth, sees)
            for one, sees in zip(drafting, branches.sees, strict=True)
        ]
        states = self._network.forward(windows, branches.token_ids.flatten(), branches.states.flatten(0, 1))
        return states.view(*branches.token_ids.shape, -1)


def _draft(tree: Tree, drawn_from: Many[Tensor]) -> Draft:
    # A chain is masked and checked with less work than a tree of one branch.
    chain = tree.parents == tuple(range(-1, len(tree.parents) - 1))
    return Draft(tree.token_ids, tuple(drawn_from) or None, None if chain else tree.parents)
