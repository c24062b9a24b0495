"""Compares the next-token distributions of two checkpoints on the same texts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftyard.engine.configuration import decoder_shape
from draftyard.engine.decoder import Decoder
from draftyard.engine.engine_directory import open_ranks
from draftyard.engine.runs import Run
from draftyard.engine.weights import read_weights
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure
from draftyard.nouns.fidelity_figures import Fidelity
from draftyard.nouns.tensor import TensorFile


def compare_checkpoints(
    first: tuple[Path, Mapping[str, Json]],
    second: tuple[Path, Mapping[str, Json]],
    open_tensors: Callable[[Path], TensorFile],
    samples: Sequence[tuple[int, ...]],
    progress: Callable[[float, str], None],
) -> Fidelity:
    """Run both, each a directory with rank files and its config, over all samples (token ids), teacher-forced.

    Weights of both are in memory. Failure when the vocabularies differ or there is nothing to compare.
    """
    longest = max((len(sample) for sample in samples), default=0)
    if not longest:
        raise Failure("there are no tokens to compare checkpoints on", "give texts that are not empty")
    decoders = [_decoder(directory, config, longest, open_tensors) for directory, config in (first, second)]
    if len({decoder.shape.vocabulary for decoder in decoders}) > 1:
        raise Failure("the checkpoints have different vocabularies", "compare checkpoints of one model")
    divergences: list[Tensor] = []
    agreeing = 0
    with torch.inference_mode():
        for index, sample in enumerate(samples):
            logits = [decoder.forward([Run(0, 0, sample, 0)]) for decoder in decoders]
            agreeing += int((logits[0].argmax(dim=1) == logits[1].argmax(dim=1)).sum())
            divergences.append(divergence(logits[0], logits[1]))
            progress((index + 1) / len(samples), f"text {index + 1}")
    every = torch.cat(divergences)
    return Fidelity(len(samples), len(every), agreeing, every.mean().item(), every.quantile(0.99).item())


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(first || second) of each row of logits [n, vocabulary], in nats, [n] float32."""
    left, right = first.float().log_softmax(dim=1), second.float().log_softmax(dim=1)
    return (left.exp() * (left - right)).sum(dim=1).clamp_(min=0.0)


def _decoder(
    directory: Path, config: Mapping[str, Json], positions: int, open_tensors: Callable[[Path], TensorFile]
) -> Decoder:
    shape, device = decoder_shape(config), torch.device("cpu")
    return Decoder(shape, read_weights(open_ranks(directory, shape, open_tensors), shape, device), 1, positions, device)
