"""Makes a running engine from an engine directory."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from draftyard.engine.configuration import (
    DecoderShape,
    EngineLimits,
    decoder_shape,
    engine_limits,
    integer,
    section,
    speculator_choice,
)
from draftyard.engine.decoder import Decoder
from draftyard.engine.draft_proposer import DraftProposer
from draftyard.engine.ngram_proposer import NgramProposer
from draftyard.engine.proposers import NoProposer, Proposer
from draftyard.engine.reference import ReferenceEngine
from draftyard.engine.rotary import rotary_limit
from draftyard.engine.weights import read_weights
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.tensor import TensorFile


def load_engine(
    directory: Path, open_tensors: Callable[[Path], TensorFile], *, device: str = "cpu", threads: int = 0
) -> ReferenceEngine:
    """Read `config.json` and the rank files; `threads` 0 means what the engine says, 0 there what suits its kernels.

    The number is torch's, so it holds for the whole process.
    Failure when a file is missing or the engine asks for what this lane does not execute.
    """
    config = _read_config(directory)
    limits, choice = engine_limits(config), speculator_choice(config)
    asked = threads or integer(section(config, "draftyard"), "threads", 0)
    torch.set_num_threads(asked or _default_threads(config, device))
    decoder = _load_decoder(directory, config, limits, open_tensors, torch.device(device))
    proposer: Proposer = NoProposer()
    if choice.kind is SpeculatorKind.NGRAM:
        proposer = NgramProposer(choice.min_match, choice.max_match)
    elif choice.kind is SpeculatorKind.DRAFT_TARGET:
        beside = directory / "draft"
        draft = _load_decoder(beside, _read_config(beside), limits, open_tensors, torch.device(device))
        proposer = DraftProposer(draft, limits.max_num_tokens, decoder.shape.vocabulary)
    return ReferenceEngine(decoder, proposer, limits)


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
    paths = [directory / f"rank{rank}.safetensors" for rank in range(shape.tp_size * shape.pp_size)]
    for path in paths:
        if not path.is_file():
            raise Failure(f"{path} is missing", "build the engine again", ExitCode.ENVIRONMENT)
    _refuse_lengths(shape, limits)
    weights = read_weights([open_tensors(path) for path in paths], shape, device)
    positions = limits.max_seq_len + limits.max_draft_len + 1
    return Decoder(shape, weights, limits.max_batch_size, positions, device)


def _refuse_lengths(shape: DecoderShape, limits: EngineLimits) -> None:
    """Sequences longer than what attention sees, or than what the rotary scaling is executed for."""
    if shape.sliding_window is not None and shape.sliding_window < limits.max_seq_len:
        raise Failure(
            f"attention of this model sees {shape.sliding_window} tokens, the engine takes {limits.max_seq_len}",
            f"the reference lane has no sliding window: build with max_seq_len {shape.sliding_window} or less",
        )
    longest = rotary_limit(shape)
    if longest is not None and longest < limits.max_seq_len:
        raise Failure(
            f"the rotary scaling of this model is executed up to {longest} tokens, the engine takes "
            f"{limits.max_seq_len}",
            f"build with max_seq_len {longest} or less",
        )


def _read_config(directory: Path) -> Mapping[str, Json]:
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Failure(f"{directory} has no config.json", "name an engine directory", ExitCode.ENVIRONMENT) from None
    except ValueError as error:
        raise Failure(f"{path} is not JSON: {error}", "build the engine again", ExitCode.ENVIRONMENT) from None
    if not isinstance(config, dict):
        raise Failure(f"{path} is not a JSON object", "build the engine again", ExitCode.ENVIRONMENT)
    return config
