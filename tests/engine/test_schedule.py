"""How a pass is shared out: limits hold for any load, and drafts never keep a prompt from being read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.engine.schedule import draft_rooms, prompt_chunks, speculation_schedule
from draftyard.nouns.errors import Failure
from draftyard.nouns.speculation_schedule import ScheduleStep

COUNTS = st.lists(st.integers(0, 200), max_size=12)


@settings(deadline=None)
@given(COUNTS, COUNTS, st.integers(-3, 300), st.integers(1, 100))
def test_a_pass_holds_no_more_than_it_may(wishes: list[int], unread: list[int], spare: int, chunk: int) -> None:
    rooms = draft_rooms(wishes, sum(unread), spare, chunk)
    chunks = prompt_chunks(unread, spare - sum(rooms), chunk)
    assert all(0 <= room <= wish for room, wish in zip(rooms, wishes, strict=True))
    assert all(0 <= count <= there for count, there in zip(chunks, unread, strict=True))
    assert sum(rooms) + sum(chunks) <= max(spare, 0)
    assert sum(chunks) <= chunk


@settings(deadline=None)
@given(COUNTS, COUNTS.filter(any), st.integers(1, 300), st.integers(1, 100))
def test_a_prompt_is_read_whatever_others_draft(wishes: list[int], unread: list[int], spare: int, chunk: int) -> None:
    rooms = draft_rooms(wishes, sum(unread), spare, chunk)
    chunks = prompt_chunks(unread, spare - sum(rooms), chunk)
    assert sum(chunks) >= min(sum(unread), chunk, (spare + 1) // 2)
    first = next(place for place, count in enumerate(unread) if count)
    assert chunks[first] > 0


@settings(deadline=None)
@given(COUNTS, st.integers(0, 300))
def test_without_prompts_drafts_take_what_they_want_in_order(wishes: list[int], spare: int) -> None:
    rooms = draft_rooms(wishes, 0, spare, 64)
    assert sum(rooms) == min(sum(wishes), spare)
    short = [place for place, (room, wish) in enumerate(zip(rooms, wishes, strict=True)) if room < wish]
    assert all(room == 0 for room in rooms[short[0] + 1 :]) if short else True


def test_a_schedule_is_read_from_the_engine_config() -> None:
    steps = [{"running": 2, "max_draft_len": 3}, {"running": 5, "max_draft_len": 0}]
    assert speculation_schedule({"draftyard": {"draft_schedule": steps}}).steps == (
        ScheduleStep(2, 3),
        ScheduleStep(5, 0),
    )
    assert speculation_schedule({"draftyard": {}}).steps == ()


@pytest.mark.parametrize("steps", ["2:3", [3], [{"running": 2}], {"running": 2}])
def test_a_schedule_of_another_shape_is_refused(steps: object) -> None:
    with pytest.raises(Failure, match=r"draft_schedule|max_draft_len"):
        speculation_schedule({"draftyard": {"draft_schedule": steps}})
