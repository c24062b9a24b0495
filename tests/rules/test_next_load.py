"""Loads are chosen so that the range is spanned first and the crossing closed in afterwards."""

import math

from hypothesis import given
from hypothesis import strategies as st

from draftyard.rules.clusters import Estimate
from draftyard.rules.next_load import around, between, in_order, next_concurrency, to_repeat


def test_ends_come_first() -> None:
    assert in_order((1, 2, 4, 8, 16)) == (1, 16, 4, 2, 8)
    assert in_order((3,)) == (3,)


@given(st.lists(st.integers(1, 256), min_size=1, max_size=9, unique=True))
def test_every_tier_comes_once(loads: list[int]) -> None:
    wanted = tuple(sorted(loads))
    assert sorted(in_order(wanted)) == list(wanted)


@given(st.floats(1.1, 200))
def test_the_crossing_is_closed_in(truth: float) -> None:
    speedups: dict[int, float] = {}
    for _ in range(30):
        load = next_concurrency((1, 4), speedups, 256)
        if load is None:
            break
        assert load not in speedups
        speedups[load] = truth / load
    below = max(load for load, gain in speedups.items() if gain > 1)
    above = min(load for load, gain in speedups.items() if gain <= 1)
    assert above - below == 1
    assert below <= truth <= above
    assert len(speedups) <= 2 + math.log2(truth) + math.log2(256)


def test_nothing_is_left_when_it_never_pays_or_always() -> None:
    assert next_concurrency((1, 2), {1: 0.9, 2: 0.8}, 64) is None
    assert next_concurrency((1, 2), {1: 1.9, 2: 1.8}, 4) == 4
    assert next_concurrency((1, 2), {1: 1.9, 2: 1.8, 4: 1.2}, 4) is None
    assert between(4, 5) is None
    assert around(5, {1, 4}) == (5,)
    assert around(1, set()) == (1,)


def test_more_turns_go_to_what_is_not_settled() -> None:
    found = {1: Estimate(0.4, 0.05, 6), 2: Estimate(0.02, 0.05, 6), 4: Estimate(-0.05, 0.2, 6)}
    assert to_repeat(found, {1: 1, 2: 1, 4: 1}) == 4
    assert to_repeat(found, {1: 1, 2: 1, 4: 2}) == 2, "all are repeated once before one is repeated twice"
    assert to_repeat(found, {1: 1, 2: 6, 4: 6}) is None
    assert to_repeat({1: found[1]}, {1: 1}) is None
