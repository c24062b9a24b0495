"""Grows draft trees of several sequences level by level: chains, fixed choices, and trees that follow confidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Choices = Sequence[Sequence[int]]
# Level, children wanted, logits [B, fed, draft vocabulary] -> rows and logs of their confidence, [B, fed, children].
Pick = Callable[[int, int, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Branches:
    """Nodes of one level that are fed to the drafter; B sequences, m nodes each, R rows fed in earlier levels.

    `token_ids` [B, m]; `states` [B, m, state] of their parents; `sees` [B, m, R + m] which fed rows of the tree each
    node attends to (its ancestors and itself); `depth` is 0 for children of the sequence's last token.
    """

    token_ids: Tensor
    states: Tensor
    sees: Tensor
    depth: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """All nodes grown, level by level: `token_ids`, `scores` (log of the joint confidence), `parents`, each [B, N].

    A parent is an index below the node's own, -1 for the sequence's last token; a score never exceeds its parent's.
    `depths` [N]: 0 for candidates for the next token.
    """

    token_ids: Tensor
    scores: Tensor
    parents: Tensor
    depths: Tensor


@dataclass(frozen=True, slots=True)
class Tree:
    """Chosen nodes of one sequence, parents before children, siblings by falling confidence."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """What one level offers: children [B, fed, k] of the fed nodes by falling confidence."""

    token_ids: Tensor
    scores: Tensor


@dataclass(frozen=True, slots=True)
class Taken:
    """`nodes` [B, c] are children of an offer that join the tree, `fed` [B, m] those of them (indices into `nodes`)
    that the next level continues; children are counted through all fed parents, parent * k + rank.
    """

    nodes: Tensor
    fed: Tensor


class TreePlan(Protocol):
    """Decides which children join the tree and which are continued."""

    @property
    def depth(self) -> int:
        """Levels at most."""
        ...

    @property
    def fed_rows(self) -> int:
        """Nodes fed to the drafter at most, over all levels: rows that its cache needs behind a sequence."""
        ...

    def width(self, level: int) -> int:
        """Children wanted of each fed node."""
        ...

    def take(self, level: int, offer: Offer) -> Taken:
        """Choose among the children of a level."""
        ...


class StaticPlan:
    """The same tree in every step: `choices` are paths of ranks, every prefix of a path being a path as well.

    Cai et al., "Medusa" (2024), and Li et al., "EAGLE" (2024), draw their trees so. A chain is {(0,), (0, 0), ...}.
    """

    def __init__(self, choices: Choices) -> None:
        paths = sorted({tuple(path) for path in choices}, key=lambda path: (len(path), path))
        self.nodes = len(paths)
        self._levels: list[list[tuple[int, ...]]] = [[] for _ in range(max(map(len, paths)))]
        for path in paths:
            self._levels[len(path) - 1].append(path)
        parents = {path[:-1] for path in paths}
        self._fed = [[path for path in level if path in parents] for level in self._levels]
        self._widths = [1 + max(path[-1] for path in level) for level in self._levels]

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        return len(self._levels)

    @property
    def fed_rows(self) -> int:
        """Nodes that have children."""
        return sum(map(len, self._fed))

    @property
    def widest(self) -> int:
        """Highest rank of any choice, counted from one."""
        return max(self._widths)

    def width(self, level: int) -> int:
        """Highest rank of the level, counted from one."""
        return self._widths[level]

    def take(self, level: int, offer: Offer) -> Taken:
        """The choices, whatever the scores say."""
        above: Choices = self._fed[level - 1] if level else [()]
        place = {tuple(path): index for index, path in enumerate(above)}
        width, paths = self._widths[level], self._levels[level]
        nodes = [place[path[:-1]] * width + path[-1] for path in paths]
        fed = [paths.index(path) for path in self._fed[level]]
        return Taken(self._spread(nodes, offer), self._spread(fed, offer))

    @staticmethod
    def _spread(indices: list[int], offer: Offer) -> Tensor:
        device = offer.token_ids.device
        return torch.tensor(indices, dtype=torch.long, device=device).expand(len(offer.token_ids), -1)


class DynamicPlan:
    """EAGLE-2: all top-k children join, and the nodes of highest joint confidence are continued.

    Li et al., "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees" (2024), section 4.1. At most
    `max_non_leaves` nodes of a level are continued, which is the bound of a TensorRT-LLM engine.
    """

    def __init__(self, top_k: int, max_non_leaves: int, depth: int) -> None:
        self._top_k = top_k
        self._continued = min(top_k, max_non_leaves)
        self._depth = depth

    @property
    def depth(self) -> int:
        """Levels."""
        return self._depth

    @property
    def fed_rows(self) -> int:
        """Continued nodes of all levels but the last."""
        return self._continued * (self._depth - 1)

    def width(self, level: int) -> int:
        """Top-k children of every continued node."""
        return self._top_k

    def take(self, level: int, offer: Offer) -> Taken:
        """All children; the best of them go on."""
        scores = offer.scores.flatten(1)
        everyone = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
        return Taken(everyone, scores.topk(min(self._continued, scores.shape[1]), dim=1).indices.sort(dim=1).values)


def chain_plan(depth: int) -> StaticPlan:
    """The likeliest token of each level."""
    return StaticPlan([(0,) * length for length in range(1, depth + 1)])


def grow(
    plan: TreePlan,
    levels: int,
    roots: Tensor,
    logits_of: Callable[[Tensor], Tensor],
    feed: Callable[[Branches], Tensor],
    token_ids_of: Callable[[Tensor], Tensor],
    pick: Pick,
) -> Candidates:
    """Candidates from `roots` [B, state], the drafter's states at each sequence's last token.

    `logits_of` maps states [n, state] to logits [n, draft vocabulary]; `feed` runs branches through the drafter and
    gives their states [B, m, state]; `token_ids_of` maps rows of the draft vocabulary to the target's ids; `pick`
    names the children (`likeliest`). At most `levels` levels are grown.
    """
    states, above = roots.unsqueeze(1), torch.zeros(len(roots), 1, device=roots.device)
    indices = torch.full((len(roots), 1), -1, dtype=torch.long, device=roots.device)
    sees = torch.zeros(len(roots), 1, 0, dtype=torch.bool, device=roots.device)
    token_ids: list[Tensor] = []
    scores: list[Tensor] = []
    parents: list[Tensor] = []
    count = 0
    for level in range(min(levels, plan.depth)):
        logits = logits_of(states.flatten(0, 1)).view(*states.shape[:2], -1)
        rows, logs = pick(level, plan.width(level), logits)
        offer = Offer(rows, above.unsqueeze(2) + logs)
        taken = plan.take(level, offer)
        fed_parents = taken.nodes // offer.scores.shape[2]
        token_ids.append(token_ids_of(offer.token_ids.flatten(1).gather(1, taken.nodes)))
        scores.append(offer.scores.flatten(1).gather(1, taken.nodes))
        parents.append(indices.gather(1, fed_parents))
        if level + 1 < min(levels, plan.depth):
            indices, above = count + taken.fed, scores[-1].gather(1, taken.fed)
            sources = fed_parents.gather(1, taken.fed)
            sees = _seen(sees, sources)
            came_from = states.gather(1, sources.unsqueeze(2).expand(-1, -1, states.shape[2]))
            states = feed(Branches(token_ids[-1].gather(1, taken.fed), came_from, sees, level))
        count += taken.nodes.shape[1]
    sizes = torch.tensor([nodes.shape[1] for nodes in token_ids], device=roots.device)
    depths = torch.arange(len(sizes), device=roots.device).repeat_interleave(sizes)
    return Candidates(torch.cat(token_ids, 1), torch.cat(scores, 1), torch.cat(parents, 1), depths)


def likeliest(level: int, width: int, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The top `width` rows of any level; ArithmeticError when logits are no finite numbers."""
    best = logits.topk(min(width, logits.shape[2]), dim=2)
    total = logits.logsumexp(dim=2)
    if not bool(total.isfinite().all()):
        raise ArithmeticError("the drafter's logits are no finite numbers: its weights do not fit their type")
    # Rounding may lift a probability above one; a child must never look likelier than its parent.
    return best.indices, (best.values - total.unsqueeze(2)).clamp(max=0.0)


def _seen(sees: Tensor, sources: Tensor) -> Tensor:
    """What the next level's nodes see: what their parent (row `sources` of the last level) sees, and themselves."""
    inherited = sees.gather(1, sources.unsqueeze(2).expand(-1, -1, sees.shape[2]))
    own = torch.eye(sources.shape[1], dtype=torch.bool, device=sees.device)
    return torch.cat((inherited, own.expand(len(sources), -1, -1)), dim=2)


def choose(candidates: Candidates, most: Sequence[int], deepest: Sequence[int]) -> list[Tree]:
    """The `most[b]` candidates of highest joint confidence on paths of at most `deepest[b]` tokens.

    They are a tree, as no child is likelier than its parent (EAGLE-2, section 4.2). Candidates lie level by level and
    the sort is stable, so among equals a parent comes first.
    """
    ranked = candidates.scores.argsort(dim=1, descending=True, stable=True)
    trees = []
    for row, (nodes, levels) in enumerate(zip(most, deepest, strict=True)):
        reachable = ranked[row][candidates.depths[ranked[row]] < levels]
        chosen = reachable[:nodes].sort().values
        place = torch.full((candidates.scores.shape[1] + 1,), -1, dtype=torch.long, device=chosen.device)
        place[chosen] = torch.arange(len(chosen), device=chosen.device)
        parents = place[candidates.parents[row, chosen]]  # -1 reads the spare last entry, which is -1
        trees.append(
            Tree(
                tuple(candidates.token_ids[row, chosen].tolist()),
                tuple(parents.tolist()),
                tuple(candidates.scores[row, chosen].tolist()),
            )
        )
    return trees
