"""Which prompt is asked where: mixed, never twice while the pack lasts, both arms alike and in balanced order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftyard.nouns.prompt import Message, Prompt
from draftyard.nouns.timeline import Arm
from draftyard.rules.load_plan import blocks, by_turns, repeats, tier_prompts


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


def test_a_tier_never_asks_a_prompt_twice() -> None:
    with pytest.raises(ValueError, match="asks 9 prompts, the pack has 8"):
        tier_prompts(pack(8), 0, 9)


@given(st.integers(1, 40), st.integers(1, 16), st.integers(0, 5))
def test_both_arms_get_the_same_prompts_once(count: int, concurrency: int, tier: int) -> None:
    prompts = pack(count)
    plan = blocks(prompts, concurrency, tier)
    for arm in Arm:
        assert [one for block in plan if block.arm is arm for one in block.prompts] == list(prompts)
    assert [block.index for block in plan] == list(range(len(plan)))
    if count >= concurrency:
        assert all(len(block.prompts) >= concurrency for block in plan)


def test_the_arm_that_begins_changes() -> None:
    order = "".join(block.arm.value[0] for block in blocks(pack(8), 1, 0))
    assert order == "bssbbssb"
    assert "".join(block.arm.value[0] for block in blocks(pack(8), 8, 0)) == "bs"
    assert "".join(block.arm.value[0] for block in blocks(pack(8), 8, 1)) == "sb"
