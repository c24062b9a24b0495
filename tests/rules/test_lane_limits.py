"""What a lane cannot execute of a network is told with numbers, before any weight is read."""

from dataclasses import replace

import pytest
from tests.rules.test_shards import BASE

from draftyard.nouns.lane import Lane
from draftyard.nouns.network import Network, RotaryScaling
from draftyard.nouns.recipe import Limits
from draftyard.rules.lane_limits import lane_problems

LIMITS = Limits(max_input_len=32, max_seq_len=64)
NETWORK = replace(BASE, head_size=64, max_position_embeddings=128)


def scaled(kind: str, **values: float) -> Network:
    return replace(NETWORK, rotary_scaling=RotaryScaling(kind, tuple(values.items())))


def messages(network: Network, *lanes: Lane) -> str:
    return "; ".join(problem.message for problem in lane_problems(network, "target", lanes, LIMITS))


def test_what_all_lanes_execute() -> None:
    assert messages(NETWORK, *Lane) == ""


@pytest.mark.parametrize("head_size", [100, 20, 512])
def test_head_sizes_without_a_kernel(head_size: int) -> None:
    """NVIDIA/TensorRT-LLM#679: 3200 / 32 heads = 100 builds, and aborts at run time."""
    network = replace(NETWORK, head_size=head_size)
    found = messages(network, Lane.TENSORRT)
    assert f"head size {head_size} is none that the tensorrt lane has attention kernels for: 32, 48, 64" in found
    assert messages(network, Lane.REFERENCE, Lane.LLMAPI) == ""


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (replace(NETWORK, sliding_window=48), "sees 48 tokens, and the reference lane has no sliding window"),
        (scaled("longrope", original_max_position_embeddings=32), "executed up to 32 tokens by the reference lane"),
        (replace(scaled("dynamic", factor=2.0), max_position_embeddings=48), "executed up to 48 tokens"),
    ],
)
def test_lengths_of_the_reference_lane(network: Network, message: str) -> None:
    assert message in messages(network, Lane.REFERENCE)


@pytest.mark.parametrize(
    "network",
    [
        replace(NETWORK, sliding_window=64),
        scaled("longrope", original_max_position_embeddings=64),
        scaled("dynamic", factor=2.0, original_max_position_embeddings=32),
        scaled("yarn", factor=2.0, original_max_position_embeddings=32),
    ],
)
def test_lengths_that_suffice(network: Network) -> None:
    assert messages(network, Lane.REFERENCE) == ""


def test_longrope_is_not_built_where_nobody_reads_its_lists() -> None:
    assert "longrope" in messages(scaled("longrope", original_max_position_embeddings=64), Lane.TENSORRT)
