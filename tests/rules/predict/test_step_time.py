"""Properties of the step: more work never takes less time, splitting never more reading, experts saturate."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.forecast_cases import LLAMA_8B, LLAMA_70B, mixtral

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.prediction import Link, Placement, Routing
from draftyard.rules.predict.devices import device_of
from draftyard.rules.predict.priors import GRAPHS
from draftyard.rules.predict.shapes import shape_of_network, storage_of
from draftyard.rules.predict.step_terms import (
    cache_bytes,
    cache_bytes_per_token,
    distinct_experts,
    link,
    step_terms,
    step_weight_bytes,
)
from draftyard.rules.predict.step_time import step_ms


def place(network: Network = LLAMA_70B, gpu: Gpu = Gpu.H100_SXM, tp: int = 2, eight: bool = False) -> Placement:
    precision = Precision.FP8 if eight else Precision.FP16
    return Placement(shape_of_network(network), device_of(gpu), storage_of(precision, gpu, eight), tp)


def decode(where: Placement, sequences: float, queries: float = 1.0, context: float = 1024.0) -> float:
    terms = step_terms(where, sequences=sequences, queries=queries, context=context, head_rows=sequences * queries)
    return step_ms(terms, GRAPHS)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 512), st.integers(1, 32), st.integers(1, 8192), st.sampled_from([1, 2, 4, 8]))
def test_more_work_takes_longer(batch: int, queries: int, context: int, tp: int) -> None:
    where = place(tp=tp)
    base = decode(where, batch, queries, context)
    assert decode(where, batch + 1, queries, context) > base
    assert decode(where, batch, queries + 1, context) > base
    assert decode(where, batch, queries, context + 1) > base
    faster = replace(where.device, bandwidth_bytes_per_s=where.device.bandwidth_bytes_per_s * 1.1)
    assert decode(replace(where, device=faster), batch, queries, context) < base


def test_one_request_reads_the_weights() -> None:
    """Batch 1 on one H200 in FP8: 68.5 GB of matrices and 2.1 GB of head at 4.8 TB/s are 14.7 ms, and the step is no
    faster; published: 19.55 ms (51.14 tok/s), 75 % of the bandwidth."""
    where = place(gpu=Gpu.H200_SXM, tp=1, eight=True)
    ideal = 1e3 * step_weight_bytes(where, 1, Routing.SPREAD) / where.device.bandwidth_bytes_per_s
    assert ideal == pytest.approx(14.7, abs=0.1)
    assert ideal < decode(where, 1) < 1.5 * ideal


def test_cache_of_a_token_after_the_models() -> None:
    """131 KB in FP16 for an 8B, 328 KB for a 70B, half in FP8; heads are copied when tp exceeds them."""
    assert cache_bytes_per_token(place(LLAMA_8B, tp=1)) == 131_072
    assert cache_bytes_per_token(place(tp=1)) == 327_680
    assert cache_bytes_per_token(place(tp=1, eight=True)) == 163_840
    assert cache_bytes_per_token(place(tp=8)) == 327_680 / 8
    few = replace(LLAMA_8B, kv_heads=2)
    assert cache_bytes_per_token(place(few, tp=8)) == cache_bytes_per_token(place(few, tp=2))


def test_a_window_bounds_the_cache() -> None:
    narrow = replace(LLAMA_8B, sliding_window=512)
    assert cache_bytes(place(narrow, tp=1), 4096) == cache_bytes(place(LLAMA_8B, tp=1), 512)
    assert cache_bytes(place(narrow, tp=1), 100) == cache_bytes(place(LLAMA_8B, tp=1), 100)
    wide = replace(LLAMA_8B, sliding_window=LLAMA_8B.max_position_embeddings)
    assert cache_bytes(place(wide, tp=1), 4096) == cache_bytes(place(LLAMA_8B, tp=1), 4096)


@given(st.floats(1, 4096))
@settings(max_examples=40, deadline=None)
def test_experts_saturate(tokens: float) -> None:
    shape = shape_of_network(mixtral())
    found = distinct_experts(shape, tokens, Routing.SPREAD)
    assert shape.experts_per_token - 1e-9 <= found <= shape.experts
    assert distinct_experts(shape, tokens + 1, Routing.SPREAD) >= found
    assert distinct_experts(shape, tokens, Routing.SAME) == shape.experts_per_token


def test_links() -> None:
    """Above two devices an H100 NVL talks over PCIe, since only pairs share a bridge."""
    assert link(place(tp=1)) is Link.NONE
    assert link(place(tp=8)) is Link.NVLINK
    assert link(place(gpu=Gpu.H100_NVL, tp=2)) is Link.NVLINK
    assert link(place(gpu=Gpu.H100_NVL, tp=4)) is Link.PCIE
    near = decode(place(gpu=Gpu.H100_SXM, tp=4), 64)
    far = decode(place(gpu=Gpu.H100_NVL, tp=4), 64)
    assert far > near


def test_the_sum_of_reading_and_computing_is_between_larger_and_both() -> None:
    where = place(tp=1)
    terms = step_terms(where, sequences=64, queries=4, context=1.0, head_rows=256)
    alone = replace(terms, cache_ms=0, attention_ms=0, activation_ms=0, layers=0, sequences=0)
    bare = replace(GRAPHS, step_us=0.0)
    reading, computing = alone.weights_ms * bare.weights, alone.compute_ms * bare.compute
    found = step_ms(alone, bare)
    assert max(reading, computing) < found < reading + computing
    assert step_ms(alone, replace(bare, sharpness=60.0)) == pytest.approx(max(reading, computing), rel=1e-2)
