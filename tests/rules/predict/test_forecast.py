"""Whole forecasts: every family, precision, device and lane; what must hold between their figures; and the pictures."""

import json
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from tests.fakes.forecast_cases import (
    LLAMA_1B,
    LLAMA_8B,
    LLAMA_70B,
    MISTRAL_7B,
    QWEN_32B,
    circumstances,
    mixtral,
)

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.prediction import Roof, VariantForecast
from draftyard.rules.predict.forecast_charts import achieved_flops, forecast_charts
from draftyard.rules.predict.forecast_json import forecast_json
from draftyard.rules.predict.variant_case import variant_case
from draftyard.rules.predict.variant_forecast import forecast_variant

DRAFT = SpeculatorKind.DRAFT_TARGET
FAMILIES = {"llama": LLAMA_8B, "mistral": MISTRAL_7B, "mixtral": mixtral(), "qwen3": QWEN_32B}
GPUS = (Gpu.H100_SXM, Gpu.H100_PCIE, Gpu.H100_NVL, Gpu.H200_SXM)


def forecast(
    network: Network = LLAMA_8B,
    gpu: Gpu = Gpu.H200_SXM,
    precision: Precision = Precision.FP8,
    tp: int = 1,
    kind: SpeculatorKind = DRAFT,
    lane: Lane = Lane.TENSORRT,
    acceptance: float | None = None,
    draft_length: int = 4,
) -> VariantForecast:
    draft = LLAMA_1B if kind is DRAFT else None
    case = circumstances(
        network,
        gpu,
        precision,
        tp,
        kind=kind,
        draft=draft,
        lane_name=lane,
        acceptance=acceptance,
        draft_length=draft_length,
    )
    return forecast_variant(variant_case(case))


@pytest.mark.parametrize("lane", [Lane.TENSORRT, Lane.LLMAPI])
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.FP8])
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_combination_has_a_whole_forecast(family: str, gpu: Gpu, precision: Precision, lane: Lane) -> None:
    for tp in (1, 2, 4, 8):
        found = forecast(FAMILIES[family], gpu, precision, tp, lane=lane)
        assert [load.concurrency for load in found.loads] == [1, 2, 4, 8, 16, 32, 64]
        for load in found.loads:
            for one in (load.ttft_ms, load.step_ms, load.tpot_ms, load.tokens_per_s_per_gpu, load.cost, load.speedup):
                assert one is not None
                assert 0 < one.low < one.value < one.high
            assert load.step_ms.value <= load.tpot_ms.value
            assert 0 < load.limit_share < 1
            assert load.cost is not None
            assert load.cost.value > 1
        rates = [load.tokens_per_s_per_gpu.value for load in found.loads if not load.waiting]
        assert all(before < after for before, after in pairwise(rates))
        json.dumps(forecast_json(found))


def test_more_bandwidth_and_fewer_bytes_are_faster() -> None:
    h100, h200 = forecast(gpu=Gpu.H100_SXM).loads[0], forecast(gpu=Gpu.H200_SXM).loads[0]
    assert h200.step_ms.value < h100.step_ms.value
    assert forecast(precision=Precision.FP8).loads[0].step_ms.value < (
        forecast(precision=Precision.FP16).loads[0].step_ms.value
    )


def test_more_acceptance_gains_more_and_pays_longer() -> None:
    low, high = forecast(LLAMA_70B, acceptance=1.6), forecast(LLAMA_70B, acceptance=3.2)
    assert low.acceptance is not None
    assert low.acceptance.source == "given"
    for before, after in zip(low.loads, high.loads, strict=True):
        assert before.speedup is not None
        assert after.speedup is not None
        assert after.speedup.value > before.speedup.value
    assert low.crossover is not None
    assert high.crossover is not None
    assert low.crossover.concurrency is not None
    assert high.crossover.concurrency is None or high.crossover.concurrency > low.crossover.concurrency


def test_break_even_is_where_speculation_costs_nothing() -> None:
    found = forecast(LLAMA_70B)
    assert found.break_even_length is not None
    even = forecast(LLAMA_70B, acceptance=found.break_even_length.value).loads[0]
    assert even.speedup is not None
    assert even.speedup.value == pytest.approx(1.0, abs=0.01)
    below = forecast(LLAMA_70B, acceptance=found.break_even_length.value * 0.9)
    assert below.crossover is not None
    assert below.crossover.concurrency == 1.0


def test_plain_decoding_has_no_figures_of_drafts() -> None:
    found = forecast(kind=SpeculatorKind.NONE)
    assert found.acceptance is found.crossover is found.break_even_length is None
    assert all(load.speedup is None and load.best_draft is None for load in found.loads)


def test_roofs() -> None:
    """Alone a large model waits for memory; a small one on eight for launches; FLOPs per byte rise with load."""
    assert forecast(LLAMA_70B).loads[0].roof is Roof.MEMORY
    assert forecast(LLAMA_8B, tp=8).loads[0].roof is Roof.OVERHEAD
    loads = forecast(LLAMA_70B).loads
    assert loads[0].intensity == pytest.approx(2.0, rel=0.05)
    assert [one.intensity for one in loads] == sorted(one.intensity for one in loads)
    assert forecast(LLAMA_70B, Gpu.H100_SXM).ridge == pytest.approx(591, abs=1)


def test_points_lie_below_their_roofs() -> None:
    for gpu in GPUS:
        found = forecast(LLAMA_70B, gpu, tp=4)
        for index, load in enumerate(found.loads):
            flops = achieved_flops(found, index)
            assert flops < found.peak_flops
            assert flops < load.intensity * found.bandwidth_bytes_per_s


def test_pictures_are_drawings_that_say_what_they_show() -> None:
    forecasts = (forecast(LLAMA_70B, Gpu.H100_SXM, tp=2), forecast(kind=SpeculatorKind.NONE), forecast(QWEN_32B))
    charts = forecast_charts(forecasts)
    assert [chart.title for chart in charts] == [
        "Roofline",
        "Memory of one device",
        *(f"Speed-up by load, {one.variant}" for one in forecasts if one.acceptance),
    ]
    for chart in charts:
        root = ElementTree.fromstring(chart.svg)
        assert root.get("aria-label")
        assert root.find("title") is not None
        assert chart.note
        texts = [text.text for text in root.iter("text")]
        assert texts
    assert "A weights" in charts[1].note
    bars = ElementTree.fromstring(charts[1].svg)
    labels = " ".join(text.text or "" for text in bars.iter("text"))
    assert all(one.memory.fit.value in labels for one in forecasts)
    assert forecast_charts(()) == ()


def test_a_crossing_within_the_loads_is_marked() -> None:
    found = forecast(LLAMA_8B, kind=SpeculatorKind.NGRAM)
    assert found.crossover is not None
    assert found.crossover.concurrency is not None
    assert 4 < found.crossover.concurrency < 64
    (chart,) = (chart for chart in forecast_charts((found,)) if chart.title.startswith("Speed-up"))
    drawn = ElementTree.fromstring(chart.svg)
    assert [one.get("class") for one in drawn.iter("rect")] == ["range"]
    assert any("crosses at" in (text.text or "") for text in drawn.iter("text"))
    assert f"{found.crossover.concurrency:.0f}" in chart.note
