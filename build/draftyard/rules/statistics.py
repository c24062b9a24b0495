"""Summaries that carry their sample size: percentiles, means, and bootstrap intervals with a fixed seed."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from draftyard.nouns.report import Summary
from draftyard.nouns.report_part import Interval

P95_LEAST_SAMPLES = 20
P99_LEAST_SAMPLES = 100
RESAMPLES = 2000


def percentile(values: Sequence[float], share: float) -> float:
    """The `share` (0..1) percentile by linear interpolation between order statistics (Hyndman and Fan, type 7)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = share * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (rank - low) * (ordered[high] - ordered[low])


def summarise(values: Sequence[float], left_out: int = 0) -> Summary | None:
    """Mean, spread and percentiles; a percentile is None where n is too small, and `reason` says so.

    `left_out` counts requests for which the figure is undefined. None when there is no value at all.
    """
    if not values:
        return None
    count = len(values)
    reasons = []
    if count < P95_LEAST_SAMPLES:
        reasons.append(f"p95 needs n >= {P95_LEAST_SAMPLES}, n is {count}")
    if count < P99_LEAST_SAMPLES:
        reasons.append(f"p99 needs n >= {P99_LEAST_SAMPLES}, n is {count}")
    mean = sum(values) / count
    return Summary(
        n=count,
        left_out=left_out,
        mean=mean,
        std=(sum((value - mean) ** 2 for value in values) / count) ** 0.5,
        min=min(values),
        max=max(values),
        p50=percentile(values, 0.5),
        p95=percentile(values, 0.95) if count >= P95_LEAST_SAMPLES else None,
        p99=percentile(values, 0.99) if count >= P99_LEAST_SAMPLES else None,
        reason="; ".join(reasons),
    )


def resample_indices(count: int, seed: int, resamples: int = RESAMPLES) -> npt.NDArray[np.int64]:
    """Indices of bootstrap samples, shape [resamples, count], the same for the same seed."""
    return np.random.default_rng(seed).integers(0, count, size=(resamples, count))


def interval(values: Sequence[float]) -> Interval:
    """The middle 95 % of resampled figures (percentile bootstrap, Efron 1979)."""
    return Interval(low=percentile(values, 0.025), high=percentile(values, 0.975))
