"""Verdicts from records whose answer is known: clear gain, clear loss, too little to tell, and the crossover."""

import numpy as np
import pytest

from draftyard.nouns.report import Advice
from draftyard.nouns.report_part import Interval
from draftyard.nouns.timeline import Arm, Outcome, RequestRecord, Timeline, TokenEvent
from draftyard.rules.verdict import advise, crossing, find_crossover, judge_domains, judge_tier, pairs_of


def record(prompt: str, arm: Arm, step_s: float, load: int = 1, domain: str = "chat", tokens: int = 1) -> RequestRecord:
    """A first token after 0.1 s, then ten steps of `tokens` each."""
    events = tuple(TokenEvent(0.1 + index * step_s, 1 + index * tokens, "x") for index in range(11))
    timeline = Timeline(Outcome.SUCCESS, events, events[-1].time_s, drafted=0, accepted=10 * (tokens - 1))
    if tokens > 1:
        timeline = Timeline(Outcome.SUCCESS, events, events[-1].time_s, drafted=40, accepted=10 * (tokens - 1))
    return RequestRecord(prompt, domain, arm, load, 0 if arm is Arm.BASELINE else 1, 0.0, timeline)


def tier(load: int, count: int, gain: float, noise: float = 0.02) -> tuple[RequestRecord, ...]:
    """`count` prompts; TPOT of the speculative arm is the baseline's over `gain`, give or take `noise`."""
    random = np.random.default_rng(load)
    records = []
    for index in range(count):
        plain_s = 0.02 * (1 + noise * random.standard_normal())
        fast_s = 0.02 / gain * (1 + noise * random.standard_normal())
        records.append(record(f"p{index}", Arm.BASELINE, plain_s, load))
        records.append(record(f"p{index}", Arm.SPECULATIVE, fast_s, load))
    return tuple(records)


def test_a_clear_gain_is_established() -> None:
    found = judge_tier(1, tier(1, 12, 2.0), 4, "sha", "now", False)
    assert found.advice is Advice.SPECULATE
    assert found.speedup == pytest.approx((0.1 + 0.2) / (0.1 + 0.1), rel=0.03)
    assert found.tpot_ratio == pytest.approx(2.0, rel=0.03)
    assert found.speedup_interval is not None
    assert found.speedup_interval.low < (found.speedup or 0) < found.speedup_interval.high
    assert found.evidence == "sha"


def test_a_clear_loss_is_established() -> None:
    assert judge_tier(8, tier(8, 12, 0.6), 4, "", "", False).advice is Advice.DO_NOT_SPECULATE


def test_a_difference_within_the_noise_is_not() -> None:
    found = judge_tier(1, tier(1, 6, 1.01, noise=0.2), 4, "", "", False)
    assert found.advice is Advice.NEUTRAL
    assert "not established" in found.reason


def test_three_prompts_decide_nothing() -> None:
    found = judge_tier(1, tier(1, 3, 3.0), 4, "", "", False)
    assert found.advice is Advice.NEUTRAL
    assert "too few" in found.reason
    assert advise(None, None, 0) == (Advice.NEUTRAL, "no prompt succeeded in both arms")
    assert advise(0.9, Interval(low=0.8, high=0.95), 8)[0] is Advice.DO_NOT_SPECULATE


def test_a_step_that_yields_three_and_costs_one_and_a_half() -> None:
    records = []
    for index in range(8):
        records.append(record(f"p{index}", Arm.BASELINE, 0.02))
        records.append(record(f"p{index}", Arm.SPECULATIVE, 0.03, tokens=3))
    found = judge_tier(1, records, 4, "", "", False)
    assert found.acceptance.acceptance_length == 3.0
    assert found.acceptance.acceptance_rate == 0.5
    assert found.tpot_ratio == pytest.approx(0.02 / (0.03 / 3))
    assert found.step_cost == pytest.approx(1.5)


def test_the_same_records_give_the_same_interval() -> None:
    assert judge_tier(1, tier(1, 8, 1.3), 4, "", "", False) == judge_tier(1, tier(1, 8, 1.3), 4, "", "", False)


def test_a_failed_answer_takes_its_pair_out() -> None:
    good = [record("p0", Arm.BASELINE, 0.02), record("p0", Arm.SPECULATIVE, 0.01)]
    cut = Timeline(Outcome.TRUNCATED, (TokenEvent(0.1, 1),), 0.2)
    lost = [record("p1", Arm.BASELINE, 0.02), RequestRecord("p1", "chat", Arm.SPECULATIVE, 1, 1, 0.0, cut)]
    assert len(pairs_of([*good, *lost])) == 1
    assert judge_tier(1, [*good, *lost], 4, "", "", False).speculative.failures == {"truncated": 1}


def test_the_crossing_is_linear_in_the_logarithm() -> None:
    assert crossing((1, 2, 4, 8), (1.5, 1.2, 1.1, 0.9)) == pytest.approx(2**2.5)
    assert crossing((1, 2, 4, 8), (1.5, 1.2, 1.1, 1.05)) is None
    assert crossing((1, 2), (0.9, 0.8)) is None


def test_a_crossover_has_an_interval() -> None:
    loads = {load: tier(load, 10, gain, noise=0.05) for load, gain in ((1, 2.0), (2, 1.6), (4, 1.2), (8, 0.7))}
    found = find_crossover(loads)
    assert found is not None
    assert found.concurrency is not None
    assert found.interval is not None
    assert 4 < found.interval.low <= found.concurrency <= found.interval.high < 8


def test_no_crossover_is_said_so() -> None:
    always = find_crossover({load: tier(load, 8, 2.0) for load in (1, 2)})
    never = find_crossover({load: tier(load, 8, 0.5) for load in (1, 2)})
    assert always is not None
    assert never is not None
    assert (always.concurrency, never.concurrency) == (None, None)
    assert always.text == "none within the measured range (1 to 2 concurrent requests): the speed-up stays above 1"
    assert "never exceeds 1" in never.text
    assert find_crossover({}) is None


def test_domains_are_judged_apart() -> None:
    records = []
    for index in range(6):
        for domain, fast_s in (("code", 0.01), ("poetry", 0.03)):
            records.append(record(f"{domain}{index}", Arm.BASELINE, 0.02, domain=domain))
            records.append(record(f"{domain}{index}", Arm.SPECULATIVE, fast_s, domain=domain))
    found = {one.domain: one for one in judge_domains(records, 4, ["sha"])}
    assert found["code"].advice is Advice.SPECULATE
    assert found["poetry"].advice is Advice.DO_NOT_SPECULATE
    assert found["code"].speedup == pytest.approx(0.3 / 0.2)
