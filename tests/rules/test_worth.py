"""Costs, break-even and the weight of the prefill, from numbers worked out by hand."""

import pytest

from draftyard.nouns.report import Acceptance, Advice
from draftyard.nouns.timeline import Arm, Outcome, RequestRecord, Timeline, TokenEvent
from draftyard.rules.acceptance_figures import pooled_acceptance
from draftyard.rules.worth import (
    best_length,
    break_even_rate,
    causes,
    cost_law,
    judge_worth,
    speedup_at,
    tokens_for_rate,
    ttft_tax,
)


def answer(ttft_s: float, step_s: float, tokens: int = 1, steps: int = 10, input_tokens: int = 100) -> Timeline:
    events = tuple(TokenEvent(ttft_s + index * step_s, 1 + index * tokens) for index in range(steps + 1))
    drafted = None if tokens == 1 else 4 * steps
    accepted = None if tokens == 1 else (tokens - 1) * steps
    return Timeline(
        Outcome.SUCCESS, events, events[-1].time_s, input_tokens=input_tokens, drafted=drafted, accepted=accepted
    )


def test_tokens_of_a_step_follow_the_papers_formula() -> None:
    assert tokens_for_rate(0.5, 3) == pytest.approx((1 - 0.5**4) / (1 - 0.5))
    assert tokens_for_rate(1.0, 3) == 4.0
    assert tokens_for_rate(0.0, 3) == 1.0


def test_break_even_is_where_yield_is_cost() -> None:
    rate = break_even_rate(1.6, 4)
    assert rate is not None
    assert tokens_for_rate(rate, 4) == pytest.approx(1.6)
    assert break_even_rate(0.9, 4) == 0.0
    assert break_even_rate(5.5, 4) is None


def test_the_cost_law_of_two_measured_lengths() -> None:
    """EAGLE on one H100: costs at k = 2 and 6 with o = 0.09, r = 0.104."""
    each, overhead = cost_law((2, 1 + 0.09 + 2 * 0.104), (6, 1 + 0.09 + 6 * 0.104))
    assert (each, overhead) == (pytest.approx(0.104), pytest.approx(0.09))
    with pytest.raises(ValueError, match="two different"):
        cost_law((2, 1.1), (2, 1.2))


def test_the_best_length_is_where_a_step_yields_most_for_its_cost() -> None:
    """Each token is accepted with 0.8 of the ones before; a drafted token costs 0.1 of a plain step, a step 0.2."""
    yields = {length: tokens_for_rate(0.8, length) / (1.2 + 0.1 * length) for length in range(1, 9)}
    assert best_length([0.8] * 8, 0.1, 0.2) == max(yields, key=yields.__getitem__)
    assert best_length([0.05] * 8, 0.1, 0.2) == 0
    assert best_length([None, None], 0.1, 0.2) == 0


def test_ten_input_tokens_to_each_output_token() -> None:
    """1 ms for each input token, 20 ms for each output token, 10 ms with speculation: (10 + 20) / (10 + 10)."""
    left, right = [answer(0.1, 0.02)] * 3, [answer(0.1, 0.03, tokens=3)] * 3
    assert speedup_at(left, right, 10) == pytest.approx(30 / 20)
    assert speedup_at(left, right, 0) == pytest.approx(2.0)
    assert speedup_at([answer(0.1, 0.02, input_tokens=0)], right, 10) is None


def test_the_tax_on_the_first_token() -> None:
    left = [answer(0.1 + 0.001 * index, 0.02) for index in range(24)]
    right = [answer(0.12 + 0.0012 * index, 0.02) for index in range(24)]
    tax, span, quantile = ttft_tax(left, right)
    assert (tax, quantile) == (pytest.approx(1.2), "p95")
    assert span is not None
    assert (span.low, span.high) == (pytest.approx(1.2), pytest.approx(1.2))
    assert ttft_tax(left[:5], right[:5])[2] == "p50"
    assert ttft_tax([], []) == (None, None, "none")


def accepted(length: float, drafted: int = 40) -> Acceptance:
    empty = pooled_acceptance([], 4)
    return empty.model_copy(update={"acceptance_length": length, "drafted": drafted})


@pytest.mark.parametrize(
    ("length", "cost", "prefill", "cache", "words"),
    [
        (1.1, 1.3, 0.1, None, "few drafts are accepted"),
        (2.0, 2.4, 0.1, None, "2.40 tokens a step break even"),
        (2.0, 1.9, 0.8, None, "reading the prompt takes 80% of the time: no decoding gains beyond 1.2x"),
        (2.0, 1.9, 0.1, 0.97, "the KV cache is 97% full"),
    ],
)
def test_a_verdict_has_its_cause(length: float, cost: float, prefill: float, cache: float | None, words: str) -> None:
    found = causes(accepted(length), cost, prefill, cache, Advice.DO_NOT_SPECULATE)
    assert found[0] == f"a step yields {length:.2f} tokens and costs {cost:.2f} plain steps"
    assert words in found[1]
    assert len(causes(accepted(length), cost, prefill, cache, Advice.SPECULATE)) == 1
    assert "nothing was drafted" in causes(accepted(1.0, 0), 1.0, 0.1, None, Advice.NEUTRAL)[1]


def test_worth_of_measured_pairs() -> None:
    pairs = []
    for index in range(6):
        plain = RequestRecord(f"p{index}", "chat", Arm.BASELINE, 1, 0, 0.0, answer(0.1, 0.02), turn=index)
        fast = RequestRecord(f"p{index}", "chat", Arm.SPECULATIVE, 1, 1, 0.0, answer(0.1, 0.03, tokens=3), turn=index)
        pairs.append((plain, fast))
    found = judge_worth(
        pairs, pooled_acceptance([fast.timeline for _, fast in pairs], 4), 1.5, 4, Advice.SPECULATE, None
    )
    assert found.break_even_length == 1.5
    assert found.prefill_share == pytest.approx(0.1 / 0.3)
    assert found.ttft_tax == pytest.approx(1.0)
    assert found.speedup_at_10_to_1 == pytest.approx(1.5)
