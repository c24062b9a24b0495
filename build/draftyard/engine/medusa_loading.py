"""Makes the proposer of an engine with Medusa heads: heads from the target's own files, the tree from the config."""

from collections.abc import Mapping
from pathlib import Path

import torch

from draftyard.engine.configuration import REBUILD, SpeculatorChoice, integer, section
from draftyard.engine.decoder import Decoder
from draftyard.engine.engine_directory import OpenTensors, open_ranks
from draftyard.engine.medusa_heads import MedusaHeads, read_medusa_heads
from draftyard.engine.medusa_proposer import MedusaProposer
from draftyard.engine.medusa_tree import medusa_tree
from draftyard.engine.weights import RankFiles, holding
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure


def load_medusa_proposer(
    directory: Path,
    config: Mapping[str, Json],
    choice: SpeculatorChoice,
    target: Decoder,
    open_tensors: OpenTensors,
    device: torch.device,
) -> MedusaProposer:
    """The proposer of an engine directory with this config; only the heads that its tree reaches are read.

    Failure when the config has no tree, a tree larger than `max_draft_len`, or heads that are not stored.
    """
    pretrained = section(config, "pretrained_config")
    stored = integer(pretrained, "num_medusa_heads", 0)
    heads = choice.heads or stored
    if choice.choices is None:
        hint = "give choices in the recipe and build again"
        raise Failure("the engine's Medusa speculator has no choices", hint)
    if heads > stored:
        raise Failure(f"the engine asks for {heads} Medusa heads and has {stored}", REBUILD, ExitCode.ENVIRONMENT)
    if len(choice.choices) > choice.max_draft_len:
        message = f"{len(choice.choices)} choices are more than max_draft_len {choice.max_draft_len}"
        raise Failure(message, "raise max_draft_len or cut the tree, and build again")
    shape = target.shape
    tree = medusa_tree(choice.choices, heads, shape.vocabulary)
    ranks, (linear, _) = RankFiles(open_ranks(directory, shape, open_tensors), shape), holding(shape.dtype, device)
    layers = integer(pretrained, "num_medusa_layers", 1)
    used = read_medusa_heads(ranks, max(tree.depths) + 1, layers, shape.vocabulary, linear)
    return MedusaProposer(MedusaHeads(used, target.project, shape.vocabulary), tree)
