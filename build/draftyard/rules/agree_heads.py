"""Whether a speculator's weights go with a target: widths, vocabularies, trees, cuts and positions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftyard.nouns.errors import Problem
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Network
from draftyard.nouns.recipe import (
    Eagle3Speculator,
    EagleSpeculator,
    HeadSpeculator,
    MedusaSpeculator,
    Recipe,
)
from draftyard.nouns.source import Source
from draftyard.nouns.speculator_source import SpeculatorNetwork, SpeculatorSource
from draftyard.rules.agree import position_problems
from draftyard.rules.shards import sharding_problems
from draftyard.rules.speculators.eagle3 import default_taps
from draftyard.rules.trees import resolved_tree, speculator_problems

if TYPE_CHECKING:
    # Plans of recipes need no arrays; importing them would take longer than the plan.
    import numpy as np
    from numpy.typing import NDArray

_HINT = "choose a speculator that was trained for this target"
# Rows of an embedding that are compared, and the mean cosine below which the tables are not of one model. A copy has 1,
# also after a change of precision; rows of unrelated tables have about 0.
COMPARED_ROWS = 256
LEAST_COSINE = 0.5


def head_problems(
    recipe: Recipe, speculator: HeadSpeculator, network: SpeculatorNetwork, target: Network
) -> list[Problem]:
    """Why this speculator cannot draft for this target as the recipe cuts and limits it. No weights are needed."""
    return [
        *_width_problems(network, target),
        *speculator_problems(speculator, network.heads or None),
        *_rank_problems(speculator, network, target),
        *_cut_problems(recipe, network, target),
        *_position_problems(recipe, network),
        *_lane_problems(recipe, network),
    ]


def used_heads(speculator: HeadSpeculator, network: SpeculatorNetwork) -> int:
    """Medusa heads in use; 0 for other kinds."""
    asked = speculator.heads if isinstance(speculator, MedusaSpeculator) else None
    return asked or network.heads


def taps_of(network: SpeculatorNetwork, target: Network) -> tuple[int, ...]:
    """Counts of target layers whose features an EAGLE-3 network reads; empty for other kinds."""
    if network.kind is not SpeculatorKind.EAGLE3:
        return ()
    return network.taps or default_taps(target.layers)


def vocabulary_problems(target: Source, source: SpeculatorSource) -> list[Problem]:
    """Where the speculator brings a tokenizer, it must be the target's."""
    own = source.tokenizer
    if own is None or own.vocabulary_digest == target.tokenizer.vocabulary_digest:
        return []
    words = f"the tokenizer beside the {source.kind} weights has {own.vocabulary_size} tokens, and is not the target's"
    return [Problem(f"{words} with {target.tokenizer.vocabulary_size}", _HINT)]


def sampled_rows(rows: int) -> tuple[int, ...]:
    """Rows of a table to compare: evenly spread, the same ones each time."""
    count = min(COMPARED_ROWS, rows)
    return tuple(index * rows // count for index in range(count))


def embedding_problems(own: "NDArray[np.float32]", target: "NDArray[np.float32]", rows: Sequence[int]) -> list[Problem]:
    """Rows [n, hidden] of the embedding that a speculator carries, held against the target's, by their direction.

    A head of another model, or of other token ids, drafts fluent nonsense without an error (SafeAILab/EAGLE#258).
    """
    import numpy as np

    norms = np.linalg.norm(own, axis=1) * np.linalg.norm(target, axis=1)
    known = norms > 0
    if not known.any():
        return []
    cosines = (own * target).sum(axis=1)[known] / norms[known]
    mean = float(cosines.mean())
    if mean >= LEAST_COSINE:
        return []
    words = f"the speculator's embedding is not the target's: mean cosine {mean:.2f} over {int(known.sum())} rows"
    worst = int(np.flatnonzero(known)[int(cosines.argmin())])
    return [Problem(f"{words}, {float(cosines.min()):.2f} for id {rows[worst]}", _HINT)]


def _width_problems(network: SpeculatorNetwork, target: Network) -> list[Problem]:
    problems = []
    if network.target_hidden_size != target.hidden_size:
        words = f"the {network.kind} weights take features of width {network.target_hidden_size}, the target's are"
        problems.append(Problem(f"{words} {target.hidden_size} wide", _HINT))
    if network.vocab_size is not None and network.vocab_size != target.vocab_size:
        words = f"the {network.kind} weights are made for {network.vocab_size} tokens, the target has"
        problems.append(Problem(f"{words} {target.vocab_size}", _HINT))
    outside = [tap for tap in network.taps or () if tap > target.layers]
    if outside:
        words = f"the {network.kind} weights read features behind layer {outside[0]}, the target has {target.layers}"
        problems.append(Problem(f"{words} layers", _HINT))
    return problems


def _rank_problems(speculator: HeadSpeculator, network: SpeculatorNetwork, target: Network) -> list[Problem]:
    """A tree cannot take more candidates than a head has tokens."""
    tokens = network.draft_vocab_size or target.vocab_size
    top_k = speculator.dynamic_tree_max_top_k if isinstance(speculator, EagleSpeculator | Eagle3Speculator) else None
    if top_k is not None and top_k > tokens:
        words = f"dynamic_tree_max_top_k {top_k} asks for more than the {tokens} tokens of the head"
        return [Problem(words, f"set it to {tokens} or less")]
    tree = resolved_tree(speculator, network.heads) if _drawable(speculator, network) else None
    wide = [path for path in tree or () if max(path, default=0) >= tokens]
    if not wide:
        return []
    return [
        Problem(f"the tree takes {list(wide[0])}, and the head has {tokens} tokens", "give a narrower tree as choices")
    ]


def _drawable(speculator: HeadSpeculator, network: SpeculatorNetwork) -> bool:
    return not speculator_problems(speculator, network.heads or None)


def _cut_problems(recipe: Recipe, network: SpeculatorNetwork, target: Network) -> list[Problem]:
    """Merged networks are cut with the target; those with a checkpoint of their own stay whole."""
    tp_size, pp_size, problems = recipe.target.tp_size, recipe.target.pp_size, list[Problem]()
    if network.kind is SpeculatorKind.MEDUSA:
        for what, size in (("hidden size", network.target_hidden_size), ("vocabulary", target.vocab_size)):
            if size % tp_size:
                words = f"Medusa heads are cut by rows without padding: {what} {size} is no multiple of tp_size"
                problems.append(Problem(f"{words} {tp_size}", f"choose a tp_size that divides {size}"))
    if network.kind is SpeculatorKind.EAGLE and network.decoder is not None:
        if pp_size > 1:
            problems.append(Problem("EAGLE has no pipeline parallelism", "set target.pp_size to 1"))
        if network.decoder.hidden_size % tp_size:
            words = f"EAGLE's fc has {network.decoder.hidden_size} rows, no multiple of tp_size {tp_size}"
            problems.append(Problem(words, "choose a tp_size that divides it"))
        problems.extend(sharding_problems(network.decoder, tp_size, 1, "EAGLE network"))
    return problems


def _position_problems(recipe: Recipe, network: SpeculatorNetwork) -> list[Problem]:
    if network.decoder is None:
        return []
    return position_problems(network.decoder, f"{network.kind} network", recipe.limits)


def _lane_problems(recipe: Recipe, network: SpeculatorNetwork) -> list[Problem]:
    """TensorRT-LLM's EAGLE is a Llama with one vocabulary; what goes beyond is this project's reference lane's."""
    if network.kind is not SpeculatorKind.EAGLE or network.decoder is None:
        return []
    problems = []
    for lane in recipe.lanes:
        if lane is Lane.TENSORRT and network.reduced:
            words = f"the {lane} lane has no EAGLE with a reduced draft vocabulary ({network.draft_vocab_size} tokens)"
            problems.append(Problem(words, "use the reference lane, or a network with the whole vocabulary"))
        if lane is Lane.TENSORRT and (network.decoder.family != "llama" or network.decoder.qk_norm):
            words = f"the {lane} lane has EAGLE networks like Llama's alone, without biases or norms of Q and K"
            problems.append(Problem(words, "use the reference lane"))
    return problems
