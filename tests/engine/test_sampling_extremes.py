"""Sampling with values that leave float32's range."""

import pytest
import torch

from draftyard.engine.sampling import distribution
from draftyard.nouns.generation import SamplingParameters


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-30, 1e-3])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([12.5, 40.0, -3.0, 39.0])
    found = distribution(logits, SamplingParameters(temperature=temperature, top_k=0))
    assert found.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_large_temperature_is_flat() -> None:
    found = distribution(torch.tensor([12.5, 40.0, -3.0, 39.0]), SamplingParameters(temperature=1e30, top_k=0))
    assert found.tolist() == pytest.approx([0.25] * 4)
