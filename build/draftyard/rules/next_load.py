"""Which load to measure next: the recipe's ends first, then between them, then closer and closer to the crossing."""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from draftyard.nouns.load import LoadLevel

MOST_CONCURRENCY = 256


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


def around(threshold: int, measured: Collection[int]) -> tuple[int, ...]:
    """Loads just below and at a policy's threshold that were not measured yet."""
    return tuple(load for load in (threshold - 1, threshold) if load >= 1 and load not in measured)


def affordable(
    levels: Sequence[LoadLevel], cost_s: Callable[[LoadLevel], float], left_s: float | None
) -> tuple[LoadLevel, ...]:
    """As many of the levels, in order, as the time that is left allows; all when there is no limit."""
    chosen: list[LoadLevel] = []
    for level in levels:
        cost = cost_s(level)
        if left_s is not None and cost > left_s:
            continue
        left_s = None if left_s is None else left_s - cost
        chosen.append(level)
    return tuple(chosen)
