"""Ties and defects: where two texts part, and why."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftyard.rules.near_ties import DivergenceCause, TokenDivergence, explain_divergence, first_divergence

LOGITS = [1.0, 5.0, 4.9995, 4.9, -math.inf]


def explained(expected: list[int], found: list[int], logits: list[float] = LOGITS) -> TokenDivergence | None:
    return explain_divergence(expected, found, lambda index: logits, 1e-3)


def test_equal_texts_do_not_part() -> None:
    assert explained([1, 2], [1, 2]) is None
    assert explained([], []) is None


@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 1)])
def test_two_tokens_within_the_bound_are_a_tie(one: int, other: int) -> None:
    divergence = explained([0, one, 3], [0, other, 4])
    assert divergence is not None
    assert (divergence.index, divergence.expected, divergence.found) == (1, one, other)
    assert divergence.cause is DivergenceCause.TIE
    assert divergence.top_two_gap == divergence.shortfall == pytest.approx(5e-4)


@pytest.mark.parametrize("wrong", [0, 3, 4])
def test_any_other_token_is_a_defect_however_close_the_two_best_are(wrong: int) -> None:
    divergence = explained([1], [wrong])
    assert divergence is not None
    assert divergence.cause is DivergenceCause.DEFECT
    assert divergence.top_two_gap == pytest.approx(5e-4)
    assert divergence.shortfall == 5.0 - LOGITS[wrong]


def test_two_tokens_that_tie_below_the_best_are_a_defect() -> None:
    divergence = explained([0], [1], [2.0, 2.0, 5.0])
    assert divergence is not None
    assert divergence.cause is DivergenceCause.DEFECT


def test_three_tokens_may_tie() -> None:
    divergence = explained([0], [2], [2.0, 2.0005, 1.9999])
    assert divergence is not None
    assert divergence.cause is DivergenceCause.TIE


def test_an_early_end_is_a_defect() -> None:
    for one, other in (([1, 2], [1]), ([1], [1, 2])):
        divergence = explained(one, other)
        assert divergence is not None
        assert (divergence.index, divergence.cause) == (1, DivergenceCause.DEFECT)


def test_what_is_no_number_is_a_defect() -> None:
    divergence = explained([0], [1], [math.nan, math.nan])
    assert divergence is not None
    assert divergence.cause is DivergenceCause.DEFECT


def test_the_logits_asked_for_are_those_behind_the_shared_tokens() -> None:
    asked = []

    def logits_at(index: int) -> list[float]:
        asked.append(index)
        return LOGITS

    explain_divergence([1, 1, 1, 2], [1, 1, 1, 1], logits_at, 1e-3)
    assert asked == [3]


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_the_first_divergence_ends_the_shared_tokens(one: list[int], other: list[int]) -> None:
    index = first_divergence(one, other)
    if index is None:
        assert one == other
    else:
        assert one[:index] == other[:index]
        assert one[index : index + 1] != other[index : index + 1]
