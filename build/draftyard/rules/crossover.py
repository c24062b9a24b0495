"""Where the speed-up falls through 1 along the load, with an interval that says when it may lie outside the range."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from draftyard.nouns.report import LoadAxis, LoadCrossing
from draftyard.nouns.report_part import Interval
from draftyard.rules.clusters import Estimate, Figures

DRAWS = 1000
UNITS = {LoadAxis.CONCURRENCY: "concurrent requests", LoadAxis.REQUEST_RATE: "requests per second"}


def falling(logs: Figures, weights: Sequence[float]) -> Figures:
    """The nearest curves that never rise, shape [..., points]: min-max formula of isotonic regression (Barlow 1972).

    Speculation spends spare arithmetic, of which more load leaves less: a rise between tiers is noise.
    """
    weight = np.asarray(weights)
    count = logs.shape[-1]
    sums = np.concatenate([np.zeros_like(logs[..., :1]), np.cumsum(logs * weight, axis=-1)], axis=-1)
    totals = np.concatenate([[0.0], np.cumsum(weight)])
    fitted = np.empty_like(logs)
    for index in range(count):
        least = np.full(logs.shape[:-1], np.inf)
        for first in range(index + 1):
            means = [
                (sums[..., last + 1] - sums[..., first]) / (totals[last + 1] - totals[first])
                for last in range(index, count)
            ]
            least = np.minimum(least, np.max(means, axis=0))
        fitted[..., index] = least
    return fitted


def crossing(loads: Sequence[float], ratios: Sequence[float]) -> float | None:
    """The first load at which the speed-up falls through 1, linear in log2 of the load between tiers; None without."""
    for (left, above), (right, below) in itertools.pairwise(zip(loads, ratios, strict=True)):
        if above > 1.0 >= below:
            share = (above - 1.0) / (above - below)
            return float(2 ** (math.log2(left) + share * (math.log2(right) - math.log2(left))))
    return None


def places(loads: Sequence[float], logs: Figures, weights: Sequence[float]) -> Figures:
    """Crossings of curves of shape [..., loads], made falling: 0 below the range, infinity above it."""
    ratios = np.exp(falling(logs, weights))
    below = ratios <= 1.0
    right = np.argmax(below, axis=-1)
    left = np.maximum(right - 1, 0)
    over, under = (np.take_along_axis(ratios, index[..., None], -1)[..., 0] for index in (left, right))
    share = (over - 1.0) / np.where(over > under, over - under, 1.0)
    scale = np.log2(np.asarray(loads, dtype=np.float64))
    found = 2.0 ** (scale[left] + share * (scale[right] - scale[left]))
    return np.asarray(np.where(below[..., 0], 0.0, np.where(below.any(axis=-1), found, np.inf)), dtype=np.float64)


def find_crossing(axis: LoadAxis, domain: str, tiers: Mapping[float, Estimate]) -> LoadCrossing | None:
    """Where speculation stops paying along one axis; None without tiers.

    The interval holds the middle 95 % of crossings of curves as they might have come out; its ends are open where that
    leads out of the measured range. `at` is None when the speed-up does not cross 1 within the range.
    """
    if not tiers:
        return None
    loads = sorted(tiers)
    found = [tiers[load] for load in loads]
    weights = [1.0 / max(one.log_error, 1e-6) ** 2 for one in found]
    point = float(places(loads, np.array([one.log_value for one in found]), weights))
    draws = np.stack([one.draws(DRAWS, seed) for seed, one in enumerate(found)], axis=1)
    crossed = np.sort(places(loads, draws, weights)).tolist()
    inside = [value for value in crossed if 0.0 < value < math.inf]
    # Places may be infinite: order statistics, no means between them.
    low, high = crossed[math.floor(0.025 * (DRAWS - 1))], crossed[math.ceil(0.975 * (DRAWS - 1))]
    at = point if 0.0 < point < math.inf else None
    span = Interval(low=max(low, loads[0]), high=min(high, loads[-1]))
    return LoadCrossing(
        axis=axis,
        domain=domain,
        at=at,
        interval=span if low < loads[-1] and high > loads[0] else None,
        open_below=low < loads[0],
        open_above=high > loads[-1],
        share_of_draws=len(inside) / DRAWS,
        text=_words(axis, loads, point, low, high),
    )


def _words(axis: LoadAxis, loads: Sequence[float], point: float, low: float, high: float) -> str:
    unit = UNITS[axis]
    reach = f"the measured range ({loads[0]:g} to {loads[-1]:g} {unit})" if len(loads) > 1 else f"{loads[0]:g} {unit}"
    lower, upper = (
        f"below {loads[0]:g}" if end < loads[0] else f"above {loads[-1]:g}" if end > loads[-1] else f"{end:.1f}"
        for end in (low, high)
    )
    if point == 0.0:
        words = f"below {reach}: the speed-up never exceeds 1"
    elif math.isinf(point):
        words = f"above {reach}: the speed-up stays above 1"
    else:
        words = f"at about {point:.1f} {unit}"
    if low < loads[0] and high > loads[-1]:
        return f"{words}; not settled: it may lie on either side of the range"
    return f"{words} (95 %: {lower if lower == upper else f'{lower} to {upper}'})"
