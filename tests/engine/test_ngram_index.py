"""n-gram lookup: the longest match, the most recent one, and every option obeyed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftyard.engine.ngram_index import NgramIndex

HISTORY = [1, 2, 3, 9, 1, 2, 3]


def test_the_longest_match_is_tried_first() -> None:
    assert NgramIndex(1, 3).propose(HISTORY, 2) == (9, 1)


def test_a_longer_match_beats_a_more_recent_shorter_one() -> None:
    history = [1, 2, 3, 9, 7, 3, 8, 1, 2, 3]
    assert NgramIndex(1, 3).propose(history, 1) == (9,)
    assert NgramIndex(1, 1).propose(history, 1) == (8,)


def test_the_most_recent_occurrence_wins() -> None:
    assert NgramIndex(1, 2).propose([5, 6, 1, 5, 6, 2, 5, 6], 1) == (2,)


def test_shorter_runs_than_min_match_do_not_count() -> None:
    assert NgramIndex(2, 3).propose([4, 3, 9, 5, 3], 3) == ()
    assert NgramIndex(1, 3).propose([4, 3, 9, 5, 3], 3) == (9, 5, 3)


@pytest.mark.parametrize(("least", "most"), [(0, 1), (3, 2), (-1, 2)])
def test_lengths_out_of_order_are_refused(least: int, most: int) -> None:
    with pytest.raises(ValueError, match="min_match"):
        NgramIndex(least, most)


def searched(tokens: list[int], least: int, most: int, room: int) -> tuple[int, ...]:
    """The definition, by search over the whole history."""
    for length in range(most, least - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if length < len(tokens) and tokens[start : start + length] == tokens[-length:]:
                copied = list(tokens)
                for offset in range(room):
                    copied.append(copied[start + length + offset])
                return tuple(copied[len(tokens) :])
    return ()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 3), st.integers(0, 2), st.integers(1, 5))
def test_the_index_finds_what_a_search_finds_however_it_was_fed(
    tokens: list[int], least: int, more: int, room: int
) -> None:
    grown = NgramIndex(least, least + more)
    for count in range(1, len(tokens) + 1, 2):
        grown.propose(tokens[:count], room)
    assert grown.propose(tokens, room) == searched(tokens, least, least + more, room)
