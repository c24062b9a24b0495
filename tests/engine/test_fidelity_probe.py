"""Divergence and agreement of two checkpoints, on numbers that can be checked by hand and on spoiled ones."""

import json
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_engines import random_llama, random_prompts, write_engine

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.fidelity_probe import compare_checkpoints, divergence
from draftyard.nouns.errors import Failure
from draftyard.nouns.fidelity_figures import Fidelity


def compared(first: Path, second: Path, samples: list[tuple[int, ...]]) -> Fidelity:
    pairs = [(path, json.loads((path / "config.json").read_text())["pretrained_config"]) for path in (first, second)]
    return compare_checkpoints(pairs[0], pairs[1], open_tensor_file, samples, lambda share, words: None)


def test_divergence_is_kullback_and_leiblers() -> None:
    first, second = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.25, 0.5]])
    expected = 0.5 * torch.tensor(2.0).log() + 0.25 * torch.tensor(0.5).log()
    assert divergence(first.log(), second.log()).item() == pytest.approx(expected.item())
    assert divergence(first.log() + 7, first.log()).item() == pytest.approx(0, abs=1e-6)


def test_a_checkpoint_agrees_with_itself_and_not_with_another(tmp_path: Path) -> None:
    samples = [tuple(prompt) for prompt in random_prompts(6)]
    one, other = (write_engine(tmp_path / str(seed), random_llama(seed)) for seed in (0, 1))
    same = compared(one, one, samples)
    assert (same.agreement, same.texts, same.tokens) == (1.0, 6, sum(map(len, samples)))
    assert same.mean_divergence < 1e-6
    different = compared(one, other, samples)
    assert different.agreement < 0.2
    assert different.worst_percentile_divergence > different.mean_divergence > 1


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one = write_engine(tmp_path / "one", random_llama())
    wider = write_engine(tmp_path / "wider", random_llama(vocab_size=100))
    with pytest.raises(Failure, match="different vocabularies"):
        compared(one, wider, [(1, 2, 3)])
    with pytest.raises(Failure, match="no tokens"):
        compared(one, one, [])
