"""The schedule: the step that the load has reached decides."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.nouns.errors import Failure
from draftyard.nouns.speculation_schedule import NO_SCHEDULE, ScheduleStep, SpeculationSchedule


def schedule(*pairs: tuple[int, int]) -> SpeculationSchedule:
    return SpeculationSchedule(tuple(ScheduleStep(*pair) for pair in pairs))


def test_the_step_that_the_load_has_reached_decides() -> None:
    found = schedule((2, 5), (4, 2), (9, 0))
    assert [found.limit(load) for load in (0, 1, 2, 3, 4, 8, 9, 100)] == [None, None, 5, 5, 2, 2, 0, 0]


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_no_schedule_limits_nothing(load: int) -> None:
    assert NO_SCHEDULE.limit(load) is None


@pytest.mark.parametrize("pairs", [((0, 5),), ((4, 5), (2, 3)), ((4, 5), (4, 3))])
def test_loads_must_rise_from_one_on(pairs: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(Failure, match="rise"):
        schedule(*pairs)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(Failure, match="-1"):
        schedule((1, -1))
