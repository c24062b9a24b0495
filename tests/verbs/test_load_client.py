"""The load client against a scripted server: both loops, refusals, caches, and a client that lacks a core."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.fakes.triton_entry.script import DRAFT_LENGTH, Fault
from tests.fakes.triton_entry.server import Pace, Running, scripted_entry

from draftyard.doors.endpoint import Endpoint
from draftyard.nouns.load import Arrival, LoadLevel
from draftyard.nouns.policy import Policy, PolicyStep
from draftyard.nouns.prompt import Message, Prompt
from draftyard.nouns.timeline import Arm, Outcome
from draftyard.nouns.verification import Verify
from draftyard.rules.arms import RECOVERED, achieved_rate_share, arm_result
from draftyard.rules.gates import CLIENT_LAG_LIMIT_MS, find_warnings
from draftyard.rules.load_plan import TWO_ARMS, blocks
from draftyard.rules.verdict import judge_tier, pairs_of
from draftyard.verbs.load_client import ArmSettings, LoadClient, Ran

QUICK = Pace(0.0, 0.001, 0.001)
OFF_FROM_THREE = Policy(version=1, steps=(PolicyStep(running=3, max_draft_len=0),))


def prompts(count: int, prefix: str = "Question") -> tuple[Prompt, ...]:
    return tuple(
        Prompt(f"p{index}", "chat", "test", "", (Message("user", f"{prefix} {index}"),)) for index in range(count)
    )


def ran(
    server: Running,
    level: LoadLevel,
    count: int,
    arms: tuple[Arm, ...] = TWO_ARMS,
    settings: ArmSettings | None = None,
    turn: int | None = None,
    prefix: str = "Question",
    **fields: object,
) -> Ran:
    wanted = Verify.model_validate({"prompts": "pack", "max_tokens": 11, **fields})

    async def once() -> Ran:
        async with Endpoint(server.grpc_url) as endpoint:
            client = LoadClient(endpoint, wanted, settings or ArmSettings(DRAFT_LENGTH), "salt", server.metrics_url)
            size = level.concurrency if turn is None else turn
            return await client.run(level, blocks(prompts(count, prefix), size, 0, arms))

    return asyncio.run(once())


def test_a_closed_loop_keeps_its_load() -> None:
    with scripted_entry(pace=QUICK) as server:
        found = ran(server, LoadLevel(3), 12)
        assert server.counters.most_in_flight == 3
    assert len(found.records) == 24
    assert {record.turn for record in found.records} == {0, 1, 2, 3}
    assert len(pairs_of(found.records)) == 12
    by_arm = {record.arm: record.draft_tokens for record in found.records}
    assert by_arm == {Arm.BASELINE: 0, Arm.SPECULATIVE: None}


def test_each_request_begins_otherwise_unless_the_cache_is_kept() -> None:
    with scripted_entry(pace=QUICK) as server:
        ran(server, LoadLevel(2), 8)
        texts = server.counters.texts
        assert len({text.split("\n")[0] for text in texts}) == len(texts) == 16
        assert all(text.startswith("[request ") for text in texts)
    with scripted_entry(pace=QUICK) as server:
        ran(server, LoadLevel(2), 8, prefix_cache="kept")
        assert sorted(set(server.counters.texts)) == [f"Question {index}" for index in range(8)]
        assert len(server.counters.texts) == 8 + 16, "each was asked once before it was measured"


def test_a_prefix_cache_is_not_what_is_measured() -> None:
    """A server that reads a known prompt in a twentieth of the time: with ids of their own all requests are alike."""
    with scripted_entry(pace=Pace(0.06, 0.0005, 0.0005, again_s=0.003)) as server:
        first = ran(server, LoadLevel(2), 8)
        second = ran(server, LoadLevel(4), 8, settings=ArmSettings(DRAFT_LENGTH))
    for found in (first, second):
        tier = judge_tier(found.records[0].concurrency, found.records, 4, "", "", False)
        assert tier.baseline.ttft_ms is not None
        assert tier.speculative.ttft_ms is not None
        assert tier.baseline.ttft_ms.min >= 60
        assert tier.speculative.ttft_ms.p50 == pytest.approx(tier.baseline.ttft_ms.p50, rel=0.5)


def test_requests_of_an_open_loop_are_due_by_the_clock() -> None:
    with scripted_entry(pace=QUICK) as server:
        level = LoadLevel(request_rate=50.0, arrival=Arrival.CONSTANT)
        found = ran(server, level, 12, turn=3)
    due = [record for record in found.records if record.block == 0]
    assert len(due) == 3
    times = sorted(record.scheduled_s or 0.0 for record in due)
    assert [round(time - times[0], 6) for time in times] == [0.0, 0.02, 0.04]
    assert all(record.sent_s >= (record.scheduled_s or 0.0) for record in due)
    assert {record.concurrency for record in found.records} == {0}
    tier = judge_tier(0, found.records, 4, "", "", False)
    assert tier.request_rate == 50.0
    assert tier.baseline.e2e_from_schedule_ms is not None


def test_an_overloaded_server_does_not_look_fast() -> None:
    """Ten requests a second for a worker that takes 150 ms each: waiting counts from when a request was due."""
    with scripted_entry(pace=Pace(0.15, 0.0, 0.0, serial=True)) as server:
        level = LoadLevel(request_rate=10.0, arrival=Arrival.CONSTANT)
        found = ran(server, level, 8, arms=(Arm.BASELINE,), turn=8, max_tokens=1)
    result = arm_result(found.records)
    share = achieved_rate_share(found.records)
    assert share is not None
    assert share == pytest.approx(0.1 / 0.15, rel=0.1)
    assert result.e2e_from_schedule_ms is not None
    assert result.e2e_from_schedule_ms.max >= 150 + 7 * 50
    tier = judge_tier(0, found.records, 4, "", "", False)
    assert "overloaded" in " ".join(find_warnings((tier,), 0.1, False, False))


def test_what_was_refused_is_tried_again_only_when_asked_and_never_measured() -> None:
    with scripted_entry(Fault.REFUSED_TWICE, QUICK) as server:
        plain = ran(server, LoadLevel(1), 2, arms=(Arm.BASELINE,))
        assert server.counters.requests == 2
    assert {record.timeline.outcome for record in plain.records} == {Outcome.REFUSED}
    with scripted_entry(Fault.REFUSED_TWICE, QUICK) as server:
        again = ran(server, LoadLevel(1), 2, arms=(Arm.BASELINE,), retries=2)
        assert server.counters.requests == 6
    assert [record.attempts for record in again.records] == [3, 3]
    result = arm_result(again.records)
    assert (result.requests, result.succeeded, result.failures) == (2, 0, {RECOVERED: 2})
    assert pairs_of(again.records) == ()


def test_the_client_follows_a_policy_by_its_own_requests() -> None:
    with scripted_entry(pace=QUICK) as server:
        settings = ArmSettings(DRAFT_LENGTH, OFF_FROM_THREE)
        alone = ran(server, LoadLevel(2), 8, tuple(Arm), settings)
        crowd = ran(server, LoadLevel(4), 8, tuple(Arm), settings)
    assert {record.draft_tokens for record in alone.records if record.arm is Arm.POLICY} == {DRAFT_LENGTH}
    assert {record.draft_tokens for record in crowd.records if record.arm is Arm.POLICY} == {0}


def test_a_server_with_a_policy_is_left_to_follow_it(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(OFF_FROM_THREE.model_dump_json())
    with scripted_entry(pace=QUICK, policy=path) as server:
        settings = ArmSettings(DRAFT_LENGTH, OFF_FROM_THREE, served=True)
        found = ran(server, LoadLevel(1), 4, tuple(Arm), settings)
        assert server.counters.draft_lengths.count(DRAFT_LENGTH) == 8
    asked = {record.arm: record.draft_tokens for record in found.records}
    assert asked == {Arm.BASELINE: 0, Arm.SPECULATIVE: DRAFT_LENGTH, Arm.POLICY: None}


def test_a_client_that_lacks_a_core_is_seen() -> None:
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(20_000))

    burners = [threading.Thread(target=burn) for _ in range(4)]
    for burner in burners:
        burner.start()
    try:
        with scripted_entry(pace=Pace(0.05, 0.02, 0.02)) as server:
            found = ran(server, LoadLevel(1), 2)
    finally:
        stop.set()
        for burner in burners:
            burner.join()
    assert found.client_lag_ms > CLIENT_LAG_LIMIT_MS
    warned = " ".join(find_warnings((), found.client_cpu_cores, False, False, found.client_lag_ms))
    assert "lacks a core" in warned
