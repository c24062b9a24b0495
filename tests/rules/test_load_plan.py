"""Which prompt is asked where: mixed, never twice while the pack lasts, both arms alike and in balanced order."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftyard.nouns.load import Arrival
from draftyard.nouns.prompt import Message, Prompt
from draftyard.nouns.timeline import Arm
from draftyard.rules.load_plan import TWO_ARMS, arrival_times, blocks, by_turns, repeats, tier_prompts, tier_size


def pack(count: int, domains: int = 4) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(f"p{index:03}", f"d{index % domains}", "test", "", (Message("user", str(index)),))
        for index in range(count)
    )


def test_domains_take_turns() -> None:
    assert [prompt.domain for prompt in by_turns(pack(8))] == ["d0", "d1", "d2", "d3"] * 2


def test_tiers_ask_different_prompts_while_the_pack_lasts() -> None:
    asked = [prompt.id for tier in range(4) for prompt in tier_prompts(pack(32), tier, 8)]
    assert len(set(asked)) == 32
    assert not repeats(pack(32), 4, 8)
    assert repeats(pack(31), 4, 8)


def test_a_tier_that_asks_more_than_the_pack_begins_it_again() -> None:
    asked = tier_prompts(pack(8), 0, 20)
    assert [prompt.id for prompt in asked[:8]] == [prompt.id for prompt in asked[8:16]]
    assert all(len({prompt.id for prompt in block.prompts}) == len(block.prompts) for block in blocks(asked, 5, 0))
    with pytest.raises(ValueError, match="no prompt"):
        tier_prompts((), 0, 1)


def test_a_tier_has_turns_enough_for_an_interval() -> None:
    assert [tier_size(16, load) for load in (1, 4, 8)] == [16, 16, 32]
    assert len({block.turn for block in blocks(pack(32), 8, 0)}) == 4


@given(st.integers(1, 40), st.integers(1, 16), st.integers(0, 5))
def test_both_arms_get_the_same_prompts_once(count: int, concurrency: int, tier: int) -> None:
    prompts = pack(count)
    plan = blocks(prompts, concurrency, tier)
    for arm in TWO_ARMS:
        assert [one for block in plan if block.arm is arm for one in block.prompts] == list(prompts)
    assert [block.index for block in plan] == list(range(len(plan)))
    if count >= concurrency:
        assert all(len(block.prompts) >= concurrency for block in plan)


def test_the_arm_that_begins_changes() -> None:
    order = "".join(block.arm.value[0] for block in blocks(pack(8), 1, 0))
    assert order == "bssbbssb"
    assert "".join(block.arm.value[0] for block in blocks(pack(8), 8, 0)) == "bs"
    assert "".join(block.arm.value[0] for block in blocks(pack(8), 8, 1)) == "sb"


def test_three_arms_share_every_place() -> None:
    plan = blocks(pack(12), 1, 0, tuple(Arm))
    orders = ["".join(block.arm.value[0] for block in plan if block.turn == turn) for turn in range(6)]
    assert orders == ["bsp", "psb", "spb", "bps", "pbs", "sbp"]
    for place in range(3):
        assert sorted(order[place] for order in orders) == ["b", "b", "p", "p", "s", "s"]


def test_arrivals_have_their_rate_and_their_seed() -> None:
    assert arrival_times(Arrival.CONSTANT, 4.0, 4, 0) == (0.0, 0.25, 0.5, 0.75)
    times = arrival_times(Arrival.POISSON, 10.0, 4001, 7)
    assert times == arrival_times(Arrival.POISSON, 10.0, 4001, 7)
    assert times != arrival_times(Arrival.POISSON, 10.0, 4001, 8)
    assert times[-1] / 4000 == pytest.approx(0.1, rel=0.05)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert sum(gap > 0.1 for gap in gaps) / 4000 == pytest.approx(math.exp(-1), abs=0.03)
    assert arrival_times(Arrival.POISSON, 1.0, 0, 0) == ()
