"""Makes the proposer of an engine with EAGLE, EAGLE-3 or MTP: which tree, how much cache, which network."""

from collections.abc import Mapping
from pathlib import Path

import torch

from draftyard.engine.configuration import REBUILD, EngineLimits, SpeculatorChoice, section
from draftyard.engine.decoder import Decoder
from draftyard.engine.drafter_network import DrafterNetwork
from draftyard.engine.drafter_weights import Room, TargetParts, drafter_shape
from draftyard.engine.eagle3_network import eagle3_taps, read_eagle3
from draftyard.engine.eagle_network import EAGLE_TAPS, read_eagle
from draftyard.engine.engine_directory import OpenTensors, open_ranks, read_config
from draftyard.engine.feature_proposer import FeatureProposer
from draftyard.engine.length_checks import refuse_lengths
from draftyard.engine.mtp_network import MTP_TAPS, read_mtp
from draftyard.engine.tree_growth import DynamicPlan, StaticPlan, TreePlan, chain_plan
from draftyard.engine.weights import RankFiles
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.lane import SpeculatorKind

FEATURE_KINDS = (SpeculatorKind.EAGLE, SpeculatorKind.EAGLE3, SpeculatorKind.MTP)


def load_feature_proposer(
    directory: Path,
    config: Mapping[str, Json],
    choice: SpeculatorChoice,
    limits: EngineLimits,
    target: Decoder,
    open_tensors: OpenTensors,
    device: torch.device,
) -> FeatureProposer:
    """The proposer of an engine directory with this config.

    An EAGLE net lies in the target's own files, the others in `speculator/`. Failure when tensors are missing or do not
    fit the target, or when the config describes no tree.
    """
    files = RankFiles(open_ranks(directory, target.shape, open_tensors), target.shape)
    parts = TargetParts(target.shape, files, target.weights)
    plan = tree_plan(choice)
    # Rows of drafted nodes lie behind those of the sequence.
    room = Room(limits.max_batch_size, limits.max_seq_len + plan.fed_rows + 1, device)
    if choice.kind is SpeculatorKind.EAGLE:
        network, taps = read_eagle(section(config, "pretrained_config"), parts, room), EAGLE_TAPS
    else:
        network, taps = _read_beside(directory / "speculator", choice.kind, parts, room, open_tensors)
    refuse_lengths(network.shape, limits)
    _refuse_wide_choices(choice, network)
    return FeatureProposer(network, plan, taps)


def _read_beside(
    directory: Path, kind: SpeculatorKind, target: TargetParts, room: Room, open_tensors: OpenTensors
) -> tuple[DrafterNetwork, tuple[int, ...]]:
    """A network with a checkpoint of its own, and the features it reads."""
    pretrained = section(read_config(directory), "pretrained_config")
    shape = drafter_shape(pretrained)
    files = RankFiles(open_ranks(directory, shape, open_tensors), shape)
    if kind is SpeculatorKind.EAGLE3:
        return read_eagle3(pretrained, files, target, room), eagle3_taps(pretrained, target.shape)
    return read_mtp(pretrained, files, target, room), MTP_TAPS


def tree_plan(choice: SpeculatorChoice) -> TreePlan:
    """The tree that an engine was built for; a chain where EAGLE-3 or MTP name none."""
    if choice.choices is not None:
        return StaticPlan(_connected(choice.choices, choice.depth))
    if choice.dynamic_top_k is not None:
        bounds = {
            "dynamic_top_k": choice.dynamic_top_k,
            "max_non_leaves_per_layer": choice.max_non_leaves_per_layer,
            "depth": choice.depth,
        }
        for name, value in bounds.items():
            if value < 1:
                raise Failure(f"engine config.json: {name} is {value}", REBUILD, ExitCode.ENVIRONMENT)
        return DynamicPlan(choice.dynamic_top_k, choice.max_non_leaves_per_layer, choice.depth)
    if choice.kind is SpeculatorKind.EAGLE:
        hint = "give choices (EAGLE-1) or dynamic_tree_max_top_k (EAGLE-2) in the recipe and build again"
        raise Failure("the engine's EAGLE speculator has neither choices nor dynamic_top_k", hint)
    return chain_plan(max(min(choice.depth, choice.max_draft_len), 1))


def _connected(choices: tuple[tuple[int, ...], ...], depth: int) -> tuple[tuple[int, ...], ...]:
    known = {(), *choices}
    for path in choices:
        if path == () or min(path) < 0:
            raise Failure(f"the choice {list(path)} is no path of ranks", "give ranks from 0 on, one a level")
        if path[:-1] not in known:
            raise Failure(f"the choice {list(path)} has no parent {list(path[:-1])}", "add every prefix of a path")
        if len(path) > depth:
            hint = "cut the paths or raise num_eagle_layers"
            raise Failure(f"the choice {list(path)} is deeper than the {depth} drafting steps", hint)
    return choices


def _refuse_wide_choices(choice: SpeculatorChoice, network: DrafterNetwork) -> None:
    size = network.vocabulary.size
    for path in choice.choices or ():
        if max(path) >= size:
            raise Failure(
                f"the choice {list(path)} asks for more than the {size} tokens of the drafter", "cut its rank"
            )
