"""Trees of drafted tokens: which ones a way to speculate can verify, and one made where a recipe names none.

A tree is a list of paths, one a node: the rank of the candidate taken on every level. TensorRT-LLM 1.2.1 builds its
masks from such lists without looking at them twice: a gap among the first candidates shifts every link behind it, a
missing prefix is filled in uncounted (`runtime/medusa_utils.py`), and a path longer than the heads reads past their
logits (FasterDecoding/Medusa#81). So everything is checked here.
"""

import math
from collections import Counter
from collections.abc import Sequence

from draftyard.nouns.errors import Problem
from draftyard.nouns.recipe import (
    DEFAULT_TREE_DEPTH,
    Choices,
    Eagle3Speculator,
    EagleSpeculator,
    MedusaSpeculator,
    Speculator,
    dynamic_tree_nodes,
)

# Builder limit of TensorRT-LLM 1.2.1 (`commands/build.py`).
EAGLE_LONGEST_DRAFT = 256
# Sixteen times the published trees; each node is a row of every step's mask, and of every logit.
MEDUSA_LONGEST_DRAFT = 1024
_HINT = "correct choices in the recipe"


def speculator_problems(speculator: Speculator, heads: int | None = None) -> list[Problem]:
    """Why the tree of a speculator cannot be drafted or verified; `heads` are those that are stored, when known."""
    if isinstance(speculator, MedusaSpeculator):
        return _medusa_problems(speculator, heads)
    if isinstance(speculator, EagleSpeculator):
        return _eagle_problems(speculator)
    if isinstance(speculator, Eagle3Speculator):
        return _eagle3_problems(speculator)
    return []


def resolved_tree(speculator: Speculator, heads: int | None = None) -> Choices | None:
    """The static tree a speculator verifies, in the order of its levels; None for chains and trees that grow.

    Where the recipe names none it is `default_tree`. `heads` are those in use, which bound Medusa's levels.
    """
    if isinstance(speculator, MedusaSpeculator):
        if speculator.choices is not None:
            return _ordered(speculator.choices)
        # As many levels as the recipe asks heads for; of stored ones no more than are worth a level by default.
        levels = speculator.heads or min(heads or DEFAULT_TREE_DEPTH, DEFAULT_TREE_DEPTH)
        return default_tree(speculator.max_draft_len, min(levels, speculator.max_draft_len))
    if isinstance(speculator, EagleSpeculator) and speculator.dynamic_tree_max_top_k is None:
        if speculator.choices is not None:
            return _ordered(speculator.choices)
        return default_tree(speculator.max_draft_len, speculator.num_eagle_layers, speculator.max_non_leaves_per_layer)
    return None


def default_tree(nodes: int, levels: int, most_non_leaves: int | None = None) -> Choices:
    """A tree of so many nodes and exactly so many levels that expects to have the longest path accepted.

    The candidate of rank r is taken to be the right one with probability share(r) = 1 / (2 (r + 1)^(7/4)), on every
    level and whatever came before (the shares of all ranks sum to 0.98). A path is accepted with the product of its
    shares, and the expected length is the sum of these products over all nodes; so the best tree holds the most
    probable paths, taken greedily: a child is never more probable than its parent or its elder sibling, hence prefixes
    and lower ranks come first by themselves. The path of first candidates is taken before all else, down to the last
    level. `most_non_leaves` bounds the nodes of one level that have children.
    """
    if nodes < levels or levels < 1:
        raise ValueError(f"{nodes} nodes do not reach level {levels}")
    chosen: list[tuple[int, ...]] = []
    parents: Counter[int] = Counter()
    spine = [(0,) * level for level in range(1, levels + 1)]
    for path in spine:
        _take(path, chosen, parents)
    waiting = [child for path in spine for child in _offered(path, levels) if child not in spine]
    while len(chosen) < nodes and waiting:
        path = min(waiting, key=_by_probability)
        waiting.remove(path)
        if _fits(path, parents, most_non_leaves):
            _take(path, chosen, parents)
            waiting.extend(_offered(path, levels))
    return _ordered(chosen)


def path_problems(choices: Choices) -> list[Problem]:
    """What makes a list of paths no tree: an empty path, one twice, a prefix that is missing, a gap among ranks."""
    problems = []
    known = set(choices)
    if () in known:
        problems.append(Problem("choices hold an empty path", "leave the root out: it is the last token, not a node"))
    twice = [path for path, count in Counter(choices).items() if count > 1]
    if twice:
        problems.append(Problem(f"choices hold {list(twice[0])} {Counter(choices)[twice[0]]} times", _HINT))
    for path in sorted(known, key=_level_order):
        prefix = path[:-1]
        if prefix and prefix not in known:
            problems.append(Problem(f"choices hold {list(path)} without its prefix {list(prefix)}", _HINT))
            break
        if path and path[-1] > 0 and (*prefix, path[-1] - 1) not in known:
            sibling = [*prefix, path[-1] - 1]
            problems.append(
                Problem(f"choices hold {list(path)} without {sibling}: ranks go up from 0 without a gap", _HINT)
            )
            break
    return problems


def choices_text(choices: Choices) -> str:
    """The tree as the Triton backend reads it: {0}, {0, 0}, {1}."""
    return ", ".join("{" + ", ".join(str(rank) for rank in path) + "}" for path in choices)


def _share(rank: int) -> float:
    return 0.5 * math.pow(rank + 1, -1.75)


def _probability(path: Sequence[int]) -> float:
    product = 1.0
    for rank in path:
        product *= _share(rank)
    return product


def _by_probability(path: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
    """The most probable path first; of equal ones the smaller, so that the choice is always the same."""
    return -_probability(path), path


def _offered(path: tuple[int, ...], levels: int) -> list[tuple[int, ...]]:
    """What becomes possible once a path is taken: its first child and its next sibling."""
    offered = []
    if len(path) < levels:
        offered.append((*path, 0))
    if path:
        offered.append((*path[:-1], path[-1] + 1))
    return offered


def _fits(path: tuple[int, ...], parents: Counter[int], most: int | None) -> bool:
    """False when its parent would be one node too many with children on that level."""
    first_child = path[-1] == 0 and len(path) > 1
    return most is None or not first_child or parents[len(path) - 1] < most


def _take(path: tuple[int, ...], chosen: list[tuple[int, ...]], parents: Counter[int]) -> None:
    chosen.append(path)
    if path[-1] == 0:
        parents[len(path) - 1] += 1


def _level_order(path: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return len(path), path


def _ordered(choices: Sequence[tuple[int, ...]]) -> Choices:
    return tuple(sorted(choices, key=_level_order))


def _medusa_problems(speculator: MedusaSpeculator, stored: int | None) -> list[Problem]:
    problems = []
    heads = speculator.heads or stored
    if speculator.heads is not None and stored is not None and speculator.heads > stored:
        problems.append(Problem(f"{speculator.heads} Medusa heads are asked for, {stored} are stored", "lower heads"))
    choices, nodes = speculator.choices, speculator.max_draft_len
    if nodes > MEDUSA_LONGEST_DRAFT:
        words = f"Medusa verifies {MEDUSA_LONGEST_DRAFT} drafted tokens at most, not {nodes}"
        problems.append(Problem(words, "lower max_draft_len"))
    if choices is None:
        return problems
    problems.extend(path_problems(choices))
    problems.extend(_size_problems(choices, nodes))
    longest = max(choices, key=len)
    if heads is not None and len(longest) > heads:
        words = f"choices hold {list(longest)}, {len(longest)} levels deep, and there are {heads} Medusa heads"
        problems.append(Problem(words, "cut the tree, or use more heads"))
    return problems


def _eagle_problems(speculator: EagleSpeculator) -> list[Problem]:
    steps, nodes = speculator.num_eagle_layers, speculator.max_draft_len
    problems = []
    if nodes > EAGLE_LONGEST_DRAFT:
        words = f"EAGLE verifies {EAGLE_LONGEST_DRAFT} drafted tokens at most, not {nodes}"
        problems.append(Problem(words, "lower max_draft_len"))
    if steps == 1 or (speculator.choices is not None and all(len(path) == 1 for path in speculator.choices)):
        words = "a tree of one level crashes TensorRT-LLM's EAGLE runtime (NVIDIA/TensorRT-LLM#10323)"
        return [*problems, Problem(words, "give it two levels or more, or use Medusa heads for one")]
    if speculator.choices is None:
        if nodes < steps:
            words = f"max_draft_len {nodes} does not reach the {steps} levels of num_eagle_layers"
            problems.append(Problem(words, f"set max_draft_len to {steps} or more"))
        return problems
    problems.extend(path_problems(speculator.choices))
    problems.extend(_size_problems(speculator.choices, nodes))
    problems.extend(_level_problems(speculator.choices, steps, speculator.max_non_leaves_per_layer))
    return problems


def _level_problems(choices: Choices, steps: int, most_non_leaves: int) -> list[Problem]:
    problems = []
    longest = max(choices, key=len)
    if len(longest) != steps:
        words = f"the longest of choices is {list(longest)}, {len(longest)} levels deep; num_eagle_layers is {steps}"
        problems.append(Problem(words, "EAGLE drafts exactly num_eagle_layers levels: make the two equal"))
    parents = Counter(len(path) for path in {path[:-1] for path in choices if len(path) > 1})
    for level, count in sorted(parents.items()):
        if count > most_non_leaves:
            words = f"level {level} of choices has {count} nodes with children, max_non_leaves_per_layer is"
            problems.append(Problem(f"{words} {most_non_leaves}", "raise max_non_leaves_per_layer, or cut the tree"))
            break
    return problems


def _size_problems(choices: Choices, max_draft_len: int) -> list[Problem]:
    nodes = len(set(choices))
    if nodes <= max_draft_len:
        return []
    return [Problem(f"choices hold {nodes} nodes, max_draft_len is {max_draft_len}", f"set max_draft_len to {nodes}")]


def _eagle3_problems(speculator: Eagle3Speculator) -> list[Problem]:
    depth, nodes, top_k = speculator.depth, speculator.max_draft_len, speculator.dynamic_tree_max_top_k
    if top_k is None:
        if nodes == depth:
            return []
        words = f"a chain of depth {depth} has {depth} nodes, max_draft_len is {nodes}"
        return [Problem(words, "remove max_draft_len, or give dynamic_tree_max_top_k")]
    largest = dynamic_tree_nodes(top_k, depth)
    if depth <= nodes <= largest:
        return []
    words = f"a tree with top_k {top_k} and depth {depth} has {depth} to {largest} nodes, max_draft_len is {nodes}"
    return [Problem(words, f"set max_draft_len from {depth} to {largest}")]
