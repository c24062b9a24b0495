"""The client against a scripted server: tokens, ends and faults, each under its own name."""

import asyncio
import time

import pytest
from tests.fakes.triton_entry.script import planned_ids
from tests.fakes.triton_entry.server import Pace, Running, scripted_entry

from draftyard.doors.endpoint import Endpoint, fetch_metrics
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.timeline import CountSource, EndMark, EntryRequest, Outcome, Timeline, TokenEvent
from draftyard.rules.acceptance_figures import accepted_by_step
from draftyard.rules.measure import inter_chunk_gaps, tpot_s, ttft_s


@pytest.fixture(scope="module")
def server():
    with scripted_entry(pace=Pace(0.03, 0.01, 0.01)) as running:
        yield running


def ask(server: Running, request: EntryRequest, timeout_s: float = 10.0, watch=None) -> Timeline:
    async def once() -> Timeline:
        async with Endpoint(server.grpc_url) as endpoint:
            return await endpoint.generate(request.call(), watch, timeout_s)

    return asyncio.run(once())


def test_events_carry_their_tokens(server: Running) -> None:
    found = ask(server, EntryRequest("Hello", 11))
    assert found.outcome is Outcome.SUCCESS
    assert [event.tokens for event in found.events] == [1, 4, 5, 9, 11]
    assert accepted_by_step(found) == (2, 0, 3, 1)
    assert found.token_ids == planned_ids("Hello", 11)
    assert (found.end_mark, found.finish_reason) == (EndMark.FINISH_REASON, "length")
    assert (found.count_source, found.count_mismatch) == (CountSource.TOKEN_IDS, 0)
    assert (found.drafted, found.accepted, found.input_tokens) == (4 + 4 + 4 + 2, 6, 1)


def test_times_are_those_of_the_script(server: Running) -> None:
    found = ask(server, EntryRequest("Hello", 11))
    assert 0.03 <= (ttft_s(found) or 0) < 0.1
    assert all(0.009 <= gap < 0.06 for gap in inter_chunk_gaps(found).gaps_s)
    assert tpot_s(found) == pytest.approx((found.events[-1].time_s - found.events[0].time_s) / 10)


def test_one_answer_in_one_piece(server: Running) -> None:
    found = ask(server, EntryRequest("Hello", 11, stream=False))
    assert [event.tokens for event in found.events] == [11]
    assert found.text == ask(server, EntryRequest("Hello", 11)).text


def test_no_speculation_when_asked(server: Running) -> None:
    found = ask(server, EntryRequest("Hello", 6, num_draft_tokens=0))
    assert [event.tokens for event in found.events] == [1, 2, 3, 4, 5, 6]
    assert (found.drafted, found.accepted) == (0, 0)


def test_a_model_without_finish_reason_ends_with_its_flag(server: Running) -> None:
    found = ask(server, EntryRequest("Hello", 6, model="ensemble", stream=False))
    assert (found.outcome, found.end_mark, found.count_source) == (
        Outcome.SUCCESS,
        EndMark.FINAL_FLAG,
        CountSource.NONE,
    )


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("reset", Outcome.RESET, "connection reset"),
        ("no_end_mark", Outcome.TRUNCATED, "end mark"),
        ("empty", Outcome.EMPTY, "no output token"),
        ("refused", Outcome.REFUSED, "no place"),
        ("queue_full", Outcome.REFUSED, "queue size"),
        ("error_first", Outcome.ERROR, "engine failed"),
        ("error_midway", Outcome.ERROR, "mid-stream"),
    ],
)
def test_each_fault_has_its_own_name(server: Running, fault: str, outcome: Outcome, words: str) -> None:
    found = ask(server, EntryRequest(f"fault:{fault}", 20))
    assert found.outcome is outcome
    assert words in found.error


def test_a_stall_ends_at_the_limit_and_leaves_no_load(server: Running) -> None:
    found = ask(server, EntryRequest("fault:stall", 20), timeout_s=0.4)
    assert found.outcome is Outcome.TIMEOUT
    assert found.tokens == 5
    wait_idle(server)


def test_nothing_is_retried(server: Running) -> None:
    before = server.counters.requests
    ask(server, EntryRequest("fault:refused", 4))
    assert server.counters.requests == before + 1


def test_closing_the_stream_cancels(server: Running) -> None:
    def watch(event: TokenEvent) -> bool:
        return event.tokens < 3

    found = ask(server, EntryRequest("Hello", 400, num_draft_tokens=0), watch=watch)
    assert (found.outcome, found.tokens) == (Outcome.CANCELLED, 3)
    wait_idle(server)


def test_counts_that_disagree_are_shown(server: Running) -> None:
    assert ask(server, EntryRequest("fault:wrong_count", 8)).count_mismatch == 1


def test_what_the_server_says_of_itself(server: Running) -> None:
    async def look() -> tuple[str, dict[str, bool]]:
        async with Endpoint(server.grpc_url) as endpoint:
            return (await endpoint.identity()).name, await endpoint.ready_models()

    name, models = asyncio.run(look())
    assert name == "scripted"
    assert all(models.values())
    assert len(models) == 5
    assert fetch_metrics(server.metrics_url)["draftyard_requests_in_flight"] == 0


def test_nobody_there() -> None:
    async def look() -> None:
        async with Endpoint("127.0.0.1:9") as endpoint:
            await endpoint.identity()

    with pytest.raises(Failure, match="does not answer") as caught:
        asyncio.run(look())
    assert caught.value.code is ExitCode.ENVIRONMENT
    assert fetch_metrics("127.0.0.1:9") == {}


def wait_idle(server: Running) -> None:
    deadline = time.monotonic() + 5
    while fetch_metrics(server.metrics_url)["draftyard_requests_in_flight"]:
        assert time.monotonic() < deadline, "the server is still busy"
        time.sleep(0.01)
