"""Acceptance that cannot be right is named, and what differs from the release is noticed."""

import pytest

from draftyard.nouns.golden_acceptance import GoldenAcceptance
from draftyard.nouns.report_part import Verdict
from draftyard.nouns.timeline import Arm, Outcome, RequestRecord, Timeline, TokenEvent
from draftyard.rules.acceptance_alarms import (
    ALL_DOMAINS,
    alarms,
    batch_alarm,
    better_tree,
    golden_differences,
    golden_missing,
    golden_rows,
    length_interval,
    tree_alarm,
)
from draftyard.rules.acceptance_figures import pooled_acceptance
from draftyard.rules.gates import golden_gate
from draftyard.rules.verdict import judge_tier


def answer(accepted: list[int], drafted: int = 4, told: int | None = None) -> Timeline:
    events = [TokenEvent(0.1, 1)]
    for step, count in enumerate(accepted, 2):
        events.append(TokenEvent(0.1 * step, events[-1].tokens + count + 1))
    total = sum(accepted) if told is None else told
    return Timeline(Outcome.SUCCESS, tuple(events), events[-1].time_s, drafted=drafted * len(accepted), accepted=total)


def tier(load: int, accepted: list[int]):
    records = []
    for index in range(4):
        plain = Timeline(Outcome.SUCCESS, (TokenEvent(0.1, 1), TokenEvent(0.5, 9)), 0.5)
        for arm, timeline in ((Arm.BASELINE, plain), (Arm.SPECULATIVE, answer(accepted))):
            records.append(RequestRecord(f"p{index}", "chat", arm, load, 0, 0.0, timeline, turn=index))
    return judge_tier(load, records, 4, "", "", False)


def found(accepted: list[int], told: int | None = None) -> tuple[str, ...]:
    return alarms(pooled_acceptance([answer(accepted, told=told)] * 3, 4), (), 4)


def test_exactly_one_and_exactly_the_maximum() -> None:
    assert "exactly 1" in found([0] * 10)[0]
    assert "exactly its maximum 5" in found([4] * 10)[0]
    assert found([2, 0, 3, 1] * 3) == ()
    assert alarms(pooled_acceptance([answer([0])], 4), (), 4) == (), "too few steps to say anything"
    assert alarms(None, (), 4) == ()


def test_a_server_that_counts_rejected_tokens() -> None:
    """The stream shows 6 accepted of 16, the server's counter says 16."""
    good = [answer([2, 0, 3, 1] * 8)]
    lying = [answer([2, 0, 3, 1], told=16)] * 5
    words = alarms(pooled_acceptance([*good, *lying], 4), (), 4)
    assert "5 of 6 answers" in words[0]
    assert "counter is wrong" in words[0]


def test_acceptance_that_falls_with_the_batch() -> None:
    steady = (tier(1, [2, 0, 3, 1] * 3), tier(8, [2, 1, 3, 0] * 3))
    falling = (tier(1, [2, 0, 3, 1] * 3), tier(8, [1, 0, 0, 0] * 3))
    assert batch_alarm(steady) == ()
    assert "falls from 2.50 at 1 to 1.25 at 8" in batch_alarm(falling)[0]


def test_a_larger_tree_cannot_accept_less() -> None:
    assert "suspect" in tree_alarm(1.8, 1.5)
    assert tree_alarm(1.8, 1.75) == ""
    assert better_tree((8, 1.8, 1.2), (63, 1.9, 1.6)).startswith("take the tree of 8 nodes")


def test_the_pooled_length_has_an_interval_over_requests() -> None:
    timelines = [answer([2, 0, 3, 1]), answer([3, 3, 3, 3]), answer([0, 0, 0, 0]), answer([1, 2])]
    result = length_interval(timelines)
    assert result is not None
    value, span, count = result
    assert (value, count) == (pytest.approx(1 + (6 + 12 + 0 + 3) / 14), 4)
    assert span.low < value < span.high
    assert length_interval([answer([1])]) is None


def test_what_differs_from_the_release_is_noticed() -> None:
    def rows(accepted: list[int], domains: tuple[str, ...] = ("chat", "code")):
        steady = {name: [answer(accepted), answer([*accepted[1:], accepted[0]]), answer(accepted)] for name in domains}
        return golden_rows(steady, "t" * 16, "eagle", "fp16", 4)

    released = rows([3, 2, 3, 2, 3, 2, 3, 3])
    golden = GoldenAcceptance(version=1, rows=released)
    assert {row.domain for row in released} == {ALL_DOMAINS, "chat", "code"}
    assert {row.sampling for row in released} == {"greedy"}
    assert golden_differences(golden, rows([3, 2, 3, 2, 3, 2, 3, 3])) == ()
    changed = golden_differences(golden, rows([1, 1, 2, 1, 1, 2, 1, 1]))
    assert len(changed) == 3
    assert changed[0] == "eagle, all: acceptance length 2.25, 3.62 at the release"
    assert golden_missing(golden, rows([3, 2, 3, 2], ("chat",))) == ("eagle, code",)
    assert golden_gate("v", changed, ()).verdict is Verdict.FAIL
    assert golden_gate("v", (), ("eagle, code",)).verdict is Verdict.SKIPPED
    assert golden_gate("v", (), ()).verdict is Verdict.PASS
