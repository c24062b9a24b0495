"""The policy follows from where the speed-up crosses 1, and is proved or not tier by tier."""

import pytest

from draftyard.nouns.policy import Policy, PolicyStep
from draftyard.nouns.report import ArmResult, LoadAxis, LoadCrossing, TierResult
from draftyard.nouns.report_part import Interval, Verdict
from draftyard.nouns.timeline import Arm, Outcome, RequestRecord, Timeline, TokenEvent
from draftyard.rules.arms import arm_result
from draftyard.rules.policy_decision import decide_policy, pays_somewhere, policy_words, prove_policy, threshold_of
from draftyard.rules.verdict import judge_tier

EMPTY: ArmResult = arm_result([])


def tier(load: int, gain: float, policy: float | None = None, spread: float = 0.01) -> TierResult:
    """`policy` is its rate over the better arm's, give or take the spread."""
    records = []
    for turn in range(6):
        for arm, step_s in ((Arm.BASELINE, 0.02), (Arm.SPECULATIVE, 0.02 / gain)):
            events = tuple(TokenEvent(0.001 + index * step_s, 1 + index) for index in range(11))
            timeline = Timeline(Outcome.SUCCESS, events, events[-1].time_s, drafted=0, accepted=0)
            records.append(RequestRecord(f"p{turn}", "chat", arm, load, 0, 0.0, timeline, turn=turn))
    found = judge_tier(load, records, 4, "", "", False)
    if policy is None:
        return found
    span = Interval(low=policy - spread, high=policy + spread)
    fields = {"policy": EMPTY}
    for name in ("policy_over_baseline", "policy_over_speculative"):
        fields |= {name: policy, f"{name}_interval": span}  # type: ignore[dict-item]
    return found.model_copy(update=fields)


def crossing(at: float | None) -> LoadCrossing:
    return LoadCrossing(
        axis=LoadAxis.CONCURRENCY,
        domain="all",
        at=at,
        interval=None,
        open_below=False,
        open_above=False,
        share_of_draws=1.0,
        text="",
    )


@pytest.mark.parametrize(
    ("gains", "at", "steps", "hysteresis", "words"),
    [
        ((1.5, 1.2, 0.8), 5.7, ((6, 0),), 1, "speculate below 6 requests in flight, not from 6 on"),
        ((1.5, 1.2, 0.8), 5.0, ((6, 0),), 1, "speculate below 6 requests in flight, not from 6 on"),
        ((1.5, 0.9, 0.8), 1.5, ((2, 0),), 0, "speculate below 2 requests in flight, not from 2 on"),
        ((0.9, 0.8, 0.7), None, ((1, 0),), 0, "do not speculate"),
        ((1.9, 1.8, 1.7), None, (), 0, "speculate at every load that was measured"),
    ],
)
def test_the_policy_is_off_above_the_crossing(
    gains: tuple[float, ...], at: float | None, steps: tuple[tuple[int, int], ...], hysteresis: int, words: str
) -> None:
    tiers = tuple(tier(load, gain) for load, gain in zip((1, 4, 8), gains, strict=True))
    found = decide_policy(tiers, crossing(at))
    assert found is not None
    assert tuple((step.running, step.max_draft_len) for step in found.steps) == steps
    assert found.hysteresis == hysteresis
    assert policy_words(found) == words
    assert pays_somewhere(tiers) is (gains[0] > 1)


def test_nothing_measured_is_no_policy() -> None:
    assert decide_policy((), crossing(3.0)) is None
    assert decide_policy((tier(1, 2.0),), None) is None
    assert prove_policy((tier(1, 2.0),), 0.05) is None
    assert threshold_of(Policy(version=1, steps=(PolicyStep(running=4, max_draft_len=2),))) is None


@pytest.mark.parametrize(
    ("ratios", "verdict", "failing", "still_open"),
    [
        ((1.0, 0.99, 1.02), Verdict.PASS, (), ()),
        ((1.0, 0.90, 1.02), Verdict.FAIL, ("4",), ()),
        ((1.0, 0.955, 1.02), Verdict.SKIPPED, (), ("4",)),
    ],
)
def test_a_policy_is_proved_tier_by_tier(
    ratios: tuple[float, ...], verdict: Verdict, failing: tuple[str, ...], still_open: tuple[str, ...]
) -> None:
    tiers = [tier(load, gain, ratio) for load, gain, ratio in zip((1, 4, 8), (1.5, 1.2, 0.8), ratios, strict=True)]
    found = prove_policy(tiers, 0.05)
    assert found is not None
    assert (found.verdict, found.failing, found.open) == (verdict, failing, still_open)
    assert found.worst_ratio == min(ratios)
