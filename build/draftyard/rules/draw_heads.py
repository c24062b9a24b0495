"""What is drawn for speculators whose weights hang on the target's features: their checkpoints, and their problems."""

from collections.abc import Mapping
from dataclasses import dataclass

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Network
from draftyard.nouns.recipe import (
    Eagle3Speculator,
    EagleSpeculator,
    HeadSpeculator,
    MedusaSpeculator,
    MtpSpeculator,
    Recipe,
    Speculator,
)
from draftyard.nouns.speculator_source import SpeculatorNetwork, SpeculatorSource
from draftyard.rules.agree_heads import head_problems, taps_of, used_heads
from draftyard.rules.trees import speculator_problems
from draftyard.rules.trtllm import object_of
from draftyard.rules.trtllm_heads import drafter_config, eagle_config, medusa_config

_KINDS = (MedusaSpeculator, EagleSpeculator, Eagle3Speculator, MtpSpeculator)


@dataclass(frozen=True, slots=True)
class HeadsDrawing:
    """A checkpoint with a speculator's weights: `role` and `config` of its step."""

    role: str
    config: Mapping[str, Json]


def head_speculators(recipe: Recipe) -> tuple[HeadSpeculator, ...]:
    """The speculators whose weights hang on the target's features, in the order of the recipe."""
    return tuple(one for one in recipe.speculators if isinstance(one, _KINDS))


def has_heads(speculator: Speculator | None) -> bool:
    """True for one of `head_speculators`."""
    return isinstance(speculator, _KINDS)


def tree_problems(recipe: Recipe) -> list[Problem]:
    """What is wrong with the trees of a recipe, whatever its weights are."""
    return [problem for speculator in recipe.speculators for problem in speculator_problems(speculator)]


def heads_problems(recipe: Recipe, target: Network, heads: tuple[SpeculatorNetwork, ...]) -> list[Problem]:
    """Why these weights cannot draft for this target; `heads` in the order of `head_speculators`."""
    pairs = zip(head_speculators(recipe), heads, strict=True)
    return [problem for one, network in pairs for problem in head_problems(recipe, one, network, target)]


def draw_heads(
    speculator: Speculator | None, heads: SpeculatorSource, target: Network, base: Mapping[str, Json]
) -> HeadsDrawing:
    """The checkpoint for one speculator. `base` is the `config.json` of the target's plain checkpoint.

    Medusa and EAGLE are written into the target's files, as TensorRT-LLM wants them; the others lie beside, in the type
    of the target's tensors that are not quantised.
    """
    network = heads.network
    if isinstance(speculator, MedusaSpeculator):
        used = used_heads(speculator, network)
        config = medusa_config(base, target.family, network, used, speculator.max_draft_len)
        return HeadsDrawing(heads.kind.value, config)
    if isinstance(speculator, EagleSpeculator):
        levels, non_leaves = speculator.num_eagle_layers, speculator.max_non_leaves_per_layer
        config = eagle_config(base, network, levels, non_leaves, speculator.max_draft_len)
        return HeadsDrawing(heads.kind.value, config)
    return HeadsDrawing(heads.kind.value, drafter_config(network, str(base["dtype"]), taps_of(network, target)))


def medusa_heads(parameters: Mapping[str, Json]) -> int:
    """Medusa heads of a checkpoint step, 0 when it has none."""
    value = object_of(parameters, "config").get("num_medusa_heads", 0)
    return value if isinstance(value, int) and parameters["role"] == SpeculatorKind.MEDUSA.value else 0
