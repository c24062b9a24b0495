"""Makes a running engine from an engine directory."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from draftyard.engine.configuration import (
    EngineLimits,
    decoder_shape,
    engine_limits,
    integer,
    section,
    speculator_choice,
)
from draftyard.engine.decoder import Decoder
from draftyard.engine.draft_proposer import DraftProposer
from draftyard.engine.drafter_loading import FEATURE_KINDS, load_feature_proposer
from draftyard.engine.engine_directory import open_ranks, read_config
from draftyard.engine.length_checks import refuse_lengths
from draftyard.engine.medusa_loading import load_medusa_proposer
from draftyard.engine.ngram_proposer import NgramProposer
from draftyard.engine.proposers import NoProposer, Proposer
from draftyard.engine.reference import ReferenceEngine
from draftyard.engine.schedule import speculation_schedule
from draftyard.engine.weights import read_weights
from draftyard.nouns.digest import Json
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.tensor import TensorFile


def load_engine(
    directory: Path, open_tensors: Callable[[Path], TensorFile], *, device: str = "cpu", threads: int = 0
) -> ReferenceEngine:
    """Read `config.json` and the rank files; `threads` 0 means what the engine says, 0 there what suits its kernels.

    The number is torch's, so it holds for the whole process.
    Failure when a file is missing or the engine asks for what this lane does not execute.
    """
    config = read_config(directory)
    limits, choice = engine_limits(config), speculator_choice(config)
    asked = threads or integer(section(config, "draftyard"), "threads", 0)
    torch.set_num_threads(asked or _default_threads(config, device))
    decoder = _load_decoder(directory, config, limits, open_tensors, torch.device(device))
    proposer: Proposer = NoProposer()
    if choice.kind is SpeculatorKind.NGRAM:
        proposer = NgramProposer(choice.min_match, choice.max_match)
    elif choice.kind is SpeculatorKind.DRAFT_TARGET:
        beside = directory / "draft"
        draft = _load_decoder(beside, read_config(beside), limits, open_tensors, torch.device(device))
        proposer = DraftProposer(draft, limits.max_num_tokens, decoder.shape.vocabulary)
    elif choice.kind is SpeculatorKind.MEDUSA:
        proposer = load_medusa_proposer(directory, config, choice, decoder, open_tensors, torch.device(device))
    elif choice.kind in FEATURE_KINDS:
        where = torch.device(device)
        proposer = load_feature_proposer(directory, config, choice, limits, decoder, open_tensors, where)
    return ReferenceEngine(decoder, proposer, limits, speculation_schedule(config))


def _default_threads(config: Mapping[str, Json], device: str) -> int:
    """One thread for float16 on a CPU, all processors otherwise.

    FBGEMM's float16 product runs on the calling thread alone. More threads would serve only the small operations
    between the products, and where the processors are busy each of those then waits for a thread that is not scheduled:
    a step measured 22 ms with one thread and 428 ms with two on two busy cores.
    """
    half_stored = device == "cpu" and section(config, "pretrained_config").get("dtype") == "float16"
    return 1 if half_stored else len(os.sched_getaffinity(0))


def _load_decoder(
    directory: Path,
    config: Mapping[str, Json],
    limits: EngineLimits,
    open_tensors: Callable[[Path], TensorFile],
    device: torch.device,
) -> Decoder:
    shape = decoder_shape(section(config, "pretrained_config"))
    files = open_ranks(directory, shape, open_tensors)
    refuse_lengths(shape, limits)
    weights = read_weights(files, shape, device)
    positions = limits.max_seq_len + limits.max_draft_len + 1
    return Decoder(shape, weights, limits.max_batch_size, positions, device)
