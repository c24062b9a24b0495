"""Which drafted tokens stand: exact for greedy and for sampled requests, for chains and for trees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftyard.engine.sampling import adjusted, distribution, draw, needs_history, uniform
from draftyard.nouns.generation import GenerationRequest

Path = tuple[int, ...]
ROOT = -1


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens of one sequence: a chain, or with `parents` a tree whose root is the sequence's last token.

    `parents[i]` is the node (an index into `token_ids`) that token i continues, -1 for the root; parents come before
    their children. Siblings are candidates for one place, tried in their order.

    `probabilities[i]` [vocabulary] is the draft's distribution behind the parent of node i, whole and normalised; all
    siblings carry the same one (one tensor will do). They must have been drawn from it one after the other without
    replacement, each from what its elder siblings left, renormalised, as `draw_without_replacement` does; a sibling
    must not be dropped, moved or merged because of what was drawn. How many are drawn may depend on their ancestors.

    None means that the proposals are certain (n-gram lookup, a greedy draft, the top k of a head): point masses, which
    may be chosen by any rule that does not know the target's random numbers.
    """

    token_ids: tuple[int, ...] = ()
    probabilities: tuple[Tensor, ...] | None = None
    parents: tuple[int, ...] | None = None

    def depths(self) -> tuple[int, ...]:
        """Tokens between the root and each node: 0 for a candidate for the next token."""
        if self.parents is None:
            return tuple(range(len(self.token_ids)))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def children(self) -> Mapping[int, tuple[int, ...]]:
        """Nodes by parent, siblings in their order."""
        if self.parents is None:
            return {node - 1: (node,) for node in range(len(self.token_ids))}
        found: dict[int, tuple[int, ...]] = {}
        for node, parent in enumerate(self.parents):
            found[parent] = (*found.get(parent, ()), node)
        return found

    def trimmed(self, nodes: int, depth: int) -> "Draft":
        """The first `nodes` nodes in breadth-first order, no path longer than `depth` tokens."""
        depths = self.depths()
        if len(depths) <= nodes and max(depths, default=-1) < depth:
            return self
        wide = sorted((node for node, at in enumerate(depths) if at < depth), key=depths.__getitem__)
        kept = sorted(wide[: max(nodes, 0)])
        place = {ROOT: ROOT, **{node: index for index, node in enumerate(kept)}}
        return Draft(
            tuple(self.token_ids[node] for node in kept),
            None if self.probabilities is None else tuple(self.probabilities[node] for node in kept),
            None if self.parents is None else tuple(place[self.parents[node]] for node in kept),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """`token_ids` to emit: those of the accepted `path` (nodes of the draft from the root on), one of the target's."""

    token_ids: tuple[int, ...]
    path: Path = ()


def verify(
    request: GenerationRequest, history: Sequence[int], draft: Draft, logits: Tensor, generator: torch.Generator
) -> Verdict:
    """Accept a path. `logits` [drafted + 1, vocabulary] are the target's behind `history` and behind each node.

    Penalties, banned tokens and the sampling filters see the history that a node has: its own path, not its siblings.
    """
    if request.sampling.greedy and not needs_history(request):
        return _greedy_path(draft, _likeliest(logits))

    def adjusted_row(path: Path) -> Tensor:
        return adjusted(logits[_row(path)], request, [*history, *(draft.token_ids[node] for node in path)])

    if request.sampling.greedy:
        return _greedy_path(draft, lambda path: int(adjusted_row(path).argmax()))
    return speculative_sample(draft, lambda path: distribution(adjusted_row(path), request.sampling), generator)


def _likeliest(logits: Tensor) -> Callable[[Path], int]:
    """The arg max behind a path; a GPU finds all at once sooner than a few one by one, a CPU only those asked for."""
    if logits.device.type == "cpu":
        return lambda path: int(logits[_row(path)].argmax())
    likeliest = logits.argmax(dim=-1).tolist()
    return lambda path: int(likeliest[_row(path)])


def _row(path: Path) -> int:
    """Row of the logits behind a path: the root's is the first."""
    return path[-1] + 1 if path else 0


def _greedy_path(draft: Draft, wanted: Callable[[Path], int]) -> Verdict:
    """Follow the child that carries the wanted token as long as there is one."""
    children = draft.children()
    path: Path = ()
    while True:
        token = wanted(path)
        nodes = children.get(path[-1] if path else ROOT, ())
        node = next((one for one in nodes if draft.token_ids[one] == token), None)
        if node is None:
            return Verdict((*(draft.token_ids[one] for one in path), token), path)
        path = (*path, node)


def speculative_sample(draft: Draft, target: Callable[[Path], Tensor], generator: torch.Generator) -> Verdict:
    """Rejection sampling whose output has the target's distribution exactly; `target(path)` gives p behind a path.

    A token x drawn from q is kept with probability min(1, p(x)/q(x)); a refusal leaves p' = max(p - q, 0), normalised
    (Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023, algorithm 1; Chen et
    al., "Accelerating Large Language Model Decoding with Speculative Sampling", 2023). In a tree the next sibling is
    tried against p' in the same way (Miao et al., "SpecInfer", 2024, multi-step speculative sampling), with q' = q
    without x, normalised, since siblings are drawn without replacement (Jeon et al., "Recursive Speculative Decoding",
    2024, recursive rejection sampling). When no sibling is left one token is drawn from what remains of p, and behind a
    leaf from p itself. Certain proposals are the case of a q that is a point mass on each sibling in turn.
    """
    children = draft.children()
    path: Path = ()
    while True:
        wanted = target(path)
        nodes = children.get(path[-1] if path else ROOT, ())
        kept = None
        proposed = None if draft.probabilities is None or not nodes else draft.probabilities[nodes[0]]
        for node in nodes:
            token = draft.token_ids[node]
            if _accepts(wanted, proposed, token, generator):
                kept = node
                break
            wanted = residual(wanted, proposed, token)
            proposed = None if proposed is None else without(proposed, token)
        if kept is None:
            return Verdict((*(draft.token_ids[one] for one in path), draw(wanted, generator)), path)
        path = (*path, kept)


def _accepts(wanted: Tensor, proposed: Tensor | None, token: int, generator: torch.Generator) -> bool:
    likelihood = 1.0 if proposed is None else float(proposed[token])
    if likelihood <= 0.0:
        raise ValueError(f"token {token} was drafted from a distribution that does not hold it")
    return uniform(generator) * likelihood < float(wanted[token])


def residual(wanted: Tensor, proposed: Tensor | None, token: int) -> Tensor:
    """max(p - q, 0), normalised; q is a point mass on `token` when `proposed` is None."""
    if proposed is None:
        return without(wanted, token)
    rest = (wanted - proposed).clamp(min=0.0)
    total = rest.sum()
    # p and q equal up to rounding: a refusal has probability ~0 and any draw from p is right.
    return rest / total if float(total) > 0 else wanted


def without(probabilities: Tensor, token: int) -> Tensor:
    """The distribution [vocabulary] given that it is not `token`; as it was when it holds nothing else."""
    rest = probabilities.clone()
    rest[token] = 0.0
    total = rest.sum()
    return rest / total if float(total) > 0 else probabilities


def draw_without_replacement(probabilities: Tensor, count: int, generator: torch.Generator) -> tuple[int, ...]:
    """At most `count` different tokens, in the order in which verification has to try them.

    Fewer when the distribution [vocabulary] holds fewer. Each comes from what the ones before it left, normalised.
    """
    tokens: list[int] = []
    for _ in range(min(count, int((probabilities > 0).sum()))):
        tokens.append(draw(probabilities, generator))
        probabilities = without(probabilities, tokens[-1])
    return tuple(tokens)
