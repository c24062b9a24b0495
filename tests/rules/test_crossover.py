"""The honesty of intervals, shown by simulation with known truth, and the crossing worked out by hand."""

import math

import numpy as np
import pytest

from draftyard.nouns.report import Advice, LoadAxis
from draftyard.rules.clusters import Estimate, estimate, t_quantile
from draftyard.rules.crossover import crossing, falling, find_crossing, places
from draftyard.rules.verdict import advise

LOADS = (1.0, 2.0, 4.0, 8.0, 16.0)
SWEEPS = 500
PROMPT_NOISE, TURN_NOISE = 0.12, 0.06


def simulated(random: np.random.Generator, speedup: float, turns: int, load: int) -> Estimate:
    """A tier of `turns`, each of `load` (at least 2) prompts: noise of the prompt, and of the moment in each arm."""
    size = max(2, load)
    names = np.repeat(np.arange(turns), size).tolist()
    tokens = random.integers(24, 65, turns * size).astype(float)
    moments = TURN_NOISE * np.repeat(random.standard_normal((turns, 2)), size, axis=0)
    plain_s = tokens * 0.02 * np.exp(0.1 * random.standard_normal(len(tokens)) + moments[:, 0])
    gain = np.exp(PROMPT_NOISE * random.standard_normal(len(tokens)) + moments[:, 1] - moments[:, 0])
    rows = np.stack([tokens, plain_s, tokens, plain_s / speedup * gain], axis=1)

    def log_ratio(sums: np.ndarray) -> np.ndarray:
        return np.log((sums[..., 2] / sums[..., 3]) / (sums[..., 0] / sums[..., 1]))

    found = estimate(rows, [names, list(range(len(rows)))], log_ratio, 7)
    assert found is not None
    return found


def true_speedup(load: float, at: float, slope: float) -> float:
    """A smooth curve that is 1 at `at`."""
    return float((load / at) ** -slope)


@pytest.mark.parametrize(("freedom", "known"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (30, 2.0423)])
def test_students_quantiles(freedom: int, known: float) -> None:
    assert t_quantile(freedom) == pytest.approx(known, rel=2e-3)


@pytest.mark.parametrize(("turns", "load"), [(4, 8), (6, 4), (8, 2)])
def test_intervals_cover_at_their_nominal_rate(turns: int, load: int) -> None:
    """Mean of exp(noise) moves all arms alike, so the truth is the speed-up put in."""
    random = np.random.default_rng(turns)
    covered = 0
    bias = math.exp(-(PROMPT_NOISE**2) / 2)
    for _ in range(SWEEPS):
        span = simulated(random, 1.2, turns, load).interval()
        assert span is not None
        covered += span.low <= 1.2 * bias <= span.high
    assert 0.93 <= covered / SWEEPS <= 0.99


def test_the_interval_of_the_crossing_covers_the_truth() -> None:
    random = np.random.default_rng(11)
    covered, closed, width = 0, 0, []
    for _ in range(SWEEPS):
        truth, slope = float(random.uniform(1.5, 12)), float(random.uniform(0.15, 0.5))
        tiers = {load: simulated(random, true_speedup(load, truth, slope), 5, int(load)) for load in LOADS}
        found = find_crossing(LoadAxis.CONCURRENCY, "all", tiers)
        assert found is not None
        if found.interval is None:
            continue
        low = -math.inf if found.open_below else found.interval.low
        high = math.inf if found.open_above else found.interval.high
        covered += low <= truth <= high
        if math.isfinite(high) and math.isfinite(low):
            closed += 1
            width.append(math.log2(high / low))
    assert covered >= 0.90 * SWEEPS
    assert closed >= 0.6 * SWEEPS
    assert float(np.median(width)) < 1.5, "an interval wider than that says nothing"


@pytest.mark.parametrize("speedup", [1.0, 0.97])
def test_false_advice_to_speculate_is_rare(speedup: float) -> None:
    random = np.random.default_rng(3)
    false = 0
    for _ in range(SWEEPS):
        found = simulated(random, speedup * math.exp(PROMPT_NOISE**2 / 2), 5, 2)
        false += advise(found.value, found.interval(), 10)[0] is Advice.SPECULATE
    assert false <= 0.05 * SWEEPS


def test_the_curve_that_never_rises() -> None:
    logs = np.array([[0.3, 0.1, 0.2, -0.1], [0.1, 0.2, 0.3, 0.4]])
    assert falling(logs, [1, 1, 1, 1]) == pytest.approx(np.array([[0.3, 0.15, 0.15, -0.1], [0.25] * 4]))
    assert falling(np.array([0.0, 1.0]), [3, 1]) == pytest.approx(np.array([0.25, 0.25]))


def test_places_below_within_and_above_the_range() -> None:
    logs = np.log(np.array([[0.9, 0.8], [1.2, 0.8], [1.2, 1.1], [1.0, 0.9]]))
    assert places((1, 4), logs, (1, 1)).tolist() == pytest.approx([0.0, 2.0, math.inf, 0.0])
    assert crossing((1, 4), (1.2, 0.8)) == pytest.approx(2.0)


def test_words_say_what_is_known() -> None:
    def found(*ratios: float, error: float = 0.01) -> str:
        tiers = {load: Estimate(math.log(ratio), error, 6) for load, ratio in zip((1.0, 2.0, 4.0), ratios, strict=True)}
        crossing = find_crossing(LoadAxis.REQUEST_RATE, "all", tiers)
        assert crossing is not None
        return crossing.text

    assert found(2.0, 1.5, 1.2) == (
        "above the measured range (1 to 4 requests per second): the speed-up stays above 1 (95 %: above 4)"
    )
    assert found(1.5, 1.2, 0.8).startswith("at about 2.8 requests per second (95 %: 2.")
    assert "never exceeds 1" in found(0.9, 0.8, 0.7)
    assert "either side" in found(1.01, 1.0, 0.99, error=0.5)
    assert find_crossing(LoadAxis.CONCURRENCY, "all", {}) is None


def test_one_turn_tells_nothing_of_its_error() -> None:
    alone = estimate(np.array([[1.0, 2.0], [3.0, 1.0]]), [["a", "a"]], lambda sums: np.log(sums[..., 0]), 1)
    assert alone is not None
    assert (alone.value, alone.interval()) == (pytest.approx(4.0), None)
    assert estimate(np.empty((0, 2)), [[]], lambda sums: sums[..., 0], 1) is None
