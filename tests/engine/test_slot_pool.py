"""Slots: the longest beginning is found, nothing useful is overwritten before its turn."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.engine.sequence import Sequence
from draftyard.engine.slot_pool import Placement, SlotPool, common_prefix
from draftyard.nouns.generation import GenerationRequest


def running(slot: int, tokens: list[int], cached: int) -> Sequence:
    request = GenerationRequest(str(slot), tuple(tokens), 5)
    return Sequence(request, slot, 0, 0, torch.Generator(), tokens=tokens, cached=cached)


def test_an_empty_pool_gives_slots_in_order_and_reuses_nothing() -> None:
    pool = SlotPool(2)
    assert pool.take((1, 2, 3), []) == Placement(0, 0, 0)
    assert pool.take((1, 2, 3), []) == Placement(1, 1, 0)
    assert not pool


def test_a_conversation_goes_on_in_its_own_slot() -> None:
    pool = SlotPool(3)
    slot = pool.take((1, 2), []).slot
    pool.give_back(slot, (1, 2, 3, 4))
    assert pool.take((1, 2, 3, 4, 5, 6), []) == Placement(slot, slot, 4)


def test_a_shared_beginning_is_copied_and_lives_on() -> None:
    pool = SlotPool(3)
    slot = pool.take((1, 2), []).slot
    pool.give_back(slot, (1, 2, 3, 4))
    assert pool.take((1, 2, 9, 9), []) == Placement(1, slot, 2)
    assert pool.take((1, 2, 3, 4, 9), []) == Placement(slot, slot, 4)


def test_a_running_sequence_lends_what_it_has_in_the_cache() -> None:
    pool = SlotPool(2)
    slot = pool.take((1, 2, 3), []).slot
    assert pool.take((1, 2, 3, 4), [running(slot, [1, 2, 3, 4], 2)]) == Placement(1, slot, 2)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    pool = SlotPool(1)
    pool.give_back(pool.take((1, 2, 3), []).slot, (1, 2, 3))
    assert pool.take((1, 2, 3), []).reused == 2


def test_the_slot_that_was_free_for_longest_is_overwritten_first() -> None:
    pool = SlotPool(2)
    first, second = pool.take((1,), []).slot, pool.take((2,), []).slot
    pool.give_back(second, (2, 2))
    pool.give_back(first, (1, 1))
    assert pool.take((7, 7), []) == Placement(second, second, 0)
    assert pool.take((1, 1, 1), []) == Placement(first, first, 2)


def test_a_slot_that_is_both_oldest_and_source_is_cut_to_the_shared_part() -> None:
    pool = SlotPool(1)
    pool.give_back(pool.take((1,), []).slot, (1, 2, 3))
    assert pool.take((1, 2, 8, 8), []) == Placement(0, 0, 2)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_prefix_is_the_longest(first: list[int], second: list[int]) -> None:
    length = common_prefix(first, second)
    assert first[:length] == second[:length]
    assert length == min(len(first), len(second)) or first[length] != second[length]


@settings(deadline=None)
@given(st.data())
def test_what_is_reused_really_lies_in_the_source(data: st.DataObject) -> None:
    """A model of the slots' contents, whatever comes and goes."""
    pool, contents, taken = SlotPool(3), {slot: [] for slot in range(3)}, {}
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=6)
    for _ in range(data.draw(st.integers(1, 30))):
        if pool and (not taken or data.draw(st.booleans())):
            prompt = data.draw(prompts)
            placement = pool.take(prompt, taken.values())
            assert placement.slot not in taken
            assert contents[placement.source][: placement.reused] == prompt[: placement.reused]
            assert placement.reused < len(prompt)
            contents[placement.slot] = list(prompt)
            taken[placement.slot] = running(placement.slot, prompt, len(prompt))
        else:
            slot = data.draw(st.sampled_from(sorted(taken)))
            pool.give_back(slot, taken.pop(slot).tokens)
    assert len(pool) + len(taken) == 3
