"""Which load to measure next: the recipe's ends first, then between them, then closer and closer to the crossing."""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from draftyard.rules.clusters import Estimate

MOST_CONCURRENCY = 256
MOST_ROUNDS = 6


def in_order(concurrency: Sequence[int]) -> tuple[int, ...]:
    """The recipe's tiers so that any beginning of the list spans the range: ends, then middles."""
    listed = [concurrency[0], concurrency[-1]] if len(concurrency) > 1 else list(concurrency)
    gaps = [(0, len(concurrency) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            listed.append(concurrency[middle])
            gaps += [(low, middle), (middle, high)]
    return tuple(listed)


def between(low: int, high: int) -> int | None:
    """The geometric middle of two loads; None when there is no whole number between them."""
    middle = round(math.sqrt(low * high))
    return middle if low < middle < high else None


def next_concurrency(wanted: Sequence[int], speedups: Mapping[int, float], most: int) -> int | None:
    """The next load: what the recipe wants, then the middle of the two tiers around the crossing.

    When the speed-up is still above 1 at the highest load it is doubled up to `most`. None when nothing is left.
    """
    for load in in_order(wanted):
        if load not in speedups:
            return load
    loads = sorted(speedups)
    for low, high in itertools.pairwise(loads):
        if speedups[low] > 1.0 >= speedups[high]:
            return between(low, high)
    if speedups[loads[-1]] > 1.0 and 2 * loads[-1] <= min(most, MOST_CONCURRENCY):
        return 2 * loads[-1]
    return None


def to_repeat(estimates: Mapping[int, Estimate], rounds: Mapping[int, int]) -> int | None:
    """The load whose verdict more turns would settle soonest: its interval holds 1, and it is the widest of those.

    None when every interval lies on one side of 1, or has been repeated often enough.
    """
    open_loads = []
    for load, found in estimates.items():
        span = found.interval()
        if rounds[load] < MOST_ROUNDS and (span is None or span.low <= 1.0 <= span.high):
            open_loads.append((rounds[load], -found.log_error, load))
    return min(open_loads)[2] if open_loads else None


def around(threshold: int, measured: Collection[int]) -> tuple[int, ...]:
    """Loads just below and at a policy's threshold that were not measured yet."""
    return tuple(load for load in (threshold - 1, threshold) if load >= 1 and load not in measured)
