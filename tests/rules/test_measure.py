"""Each figure against a timeline whose answer was worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftyard.nouns.timeline import Outcome, Timeline, TokenEvent
from draftyard.rules import acceptance_figures, measure, statistics

FOUR_CHUNKS = ((0.10, 1), (0.15, 3), (0.20, 2), (0.25, 4))


def timeline(*chunks: tuple[float, int], **fields: object) -> Timeline:
    total = 0
    events = []
    for time_s, tokens in chunks:
        total += tokens
        events.append(TokenEvent(time_s, total, "x" * tokens))
    end_s = events[-1].time_s if events else 0.0
    return Timeline(outcome=Outcome.SUCCESS, events=tuple(events), end_s=end_s, **fields)  # type: ignore[arg-type]


def test_an_event_is_not_a_token() -> None:
    one = timeline(*FOUR_CHUNKS)
    assert one.tokens == 10
    assert measure.ttft_s(one) == pytest.approx(0.10)
    assert measure.tpot_s(one) == pytest.approx(0.15 / 9)
    assert measure.inter_chunk_gaps(one).gaps_s == pytest.approx((0.05, 0.05, 0.05))


def test_the_peak_is_never_below_the_average() -> None:
    arrivals = [(time_s, tokens * 10) for time_s, tokens in FOUR_CHUNKS]
    rates = measure.bucket_rates(arrivals, 0.25)
    assert rates == pytest.approx((400.0,))
    assert max(rates) >= 100 / 0.25


@given(
    st.lists(st.tuples(st.floats(0, 7.3), st.integers(1, 9)), min_size=1, max_size=40), st.sampled_from([7.3, 8.0, 7.5])
)
def test_buckets_hold_every_token(arrivals: list[tuple[float, int]], window_s: float) -> None:
    rates = measure.bucket_rates(arrivals, window_s)
    widths = [min(1.0, window_s - index) for index in range(len(rates))]
    total = sum(tokens for _, tokens in arrivals)
    assert sum(rate * width for rate, width in zip(rates, widths, strict=True)) == pytest.approx(total)
    assert max(rates) >= total / window_s * (1 - 1e-9)


def test_the_first_event_may_carry_several_tokens() -> None:
    one = timeline((0.10, 3), (0.14, 4))
    assert measure.tpot_s(one) == pytest.approx(0.010)
    assert measure.tpot_industry_s(one) == pytest.approx(0.04 / 6)


def test_events_of_one_read_are_merged() -> None:
    gaps = measure.inter_chunk_gaps(timeline((0.044, 1), (0.044, 1), (0.044008, 2), (0.060, 1)))
    assert gaps.merged_events == 2
    assert gaps.gaps_s == pytest.approx((0.016,))
    assert gaps.chunks == 2


def test_short_answers_have_no_tpot_rather_than_a_wrong_one() -> None:
    assert measure.tpot_s(timeline((0.1, 1))) is None
    assert measure.ttft_s(timeline((0.1, 1))) == 0.1
    assert measure.tpot_s(timeline((0.1, 1), (0.13, 1))) == pytest.approx(0.03)
    assert measure.ttft_s(timeline()) is None


def test_means_over_requests_and_over_tokens_differ() -> None:
    long, short = timeline((0.5, 1), (1.5, 100)), timeline((0.5, 1), (0.9, 10))
    each = [measure.tpot_s(one) for one in (long, short)]
    assert each == pytest.approx([0.010, 0.040])
    assert sum(value or 0 for value in each) / 2 == pytest.approx(0.025)
    assert measure.token_weighted_tpot_s([long, short]) == pytest.approx(1.4 / 110)


def test_counts_come_from_events_without_text_too() -> None:
    one = Timeline(Outcome.SUCCESS, (TokenEvent(0.1, 0, "a"), TokenEvent(0.2, 0, "b"), TokenEvent(0.3, 2, "")), 0.3)
    assert one.tokens == 2
    assert measure.ttft_s(one) == 0.3
    assert measure.time_to_first_text_s(one) == 0.1


def test_a_falling_count_is_a_fault() -> None:
    with pytest.raises(ValueError, match="falls"):
        measure.token_events(Timeline(Outcome.SUCCESS, (TokenEvent(0.1, 3), TokenEvent(0.2, 2)), 0.2))


def test_only_complete_answers_are_measured() -> None:
    good, cut = timeline((0.1, 2)), Timeline(Outcome.TRUNCATED, (TokenEvent(0.1, 2),), 0.2)
    slow = Timeline(Outcome.TIMEOUT, (), 60.0)
    assert measure.succeeded([good, cut, slow]) == (good,)
    assert measure.failures_by_kind([good, cut, slow, slow]) == {"timeout": 2, "truncated": 1}


def test_acceptance_under_each_of_its_names() -> None:
    one = timeline((0.1, 1), (0.2, 3), (0.3, 1), (0.4, 4), (0.5, 2), drafted=16, accepted=6)
    found = acceptance_figures.pooled_acceptance([one], 4)
    assert found.mean_accepted_per_step == 1.5
    assert found.acceptance_length == 2.5
    assert found.acceptance_rate == 6 / 16
    assert found.per_position == (3 / 4, 2 / 3, 1 / 2, 0.0)
    assert found.histogram == (1, 1, 1, 1, 0)
    assert found.steps == 4


def test_an_answer_that_ends_inside_the_drafts() -> None:
    """Verified block [d1, end, d3, d4, bonus]: two tokens are emitted, both of them drafts."""
    one = timeline((0.1, 1), (0.2, 2), drafted=4, accepted=2)
    assert acceptance_figures.accepted_by_step(one) == (2,)
    found = acceptance_figures.pooled_acceptance([one], 4)
    assert (found.accepted, found.mean_accepted_per_step, found.histogram) == (2, 2.0, (0, 0, 1, 0, 0))


def test_a_total_that_contradicts_the_stream_is_counted_apart() -> None:
    wrong = timeline((0.1, 1), (0.2, 2), drafted=8, accepted=6)
    right = timeline((0.1, 1), (0.2, 3), drafted=4, accepted=2)
    found = acceptance_figures.pooled_acceptance([wrong, right], 4)
    assert (found.requests, found.inconsistent_requests, found.steps, found.accepted) == (2, 1, 1, 2)


def test_the_rate_divides_by_what_was_drafted() -> None:
    one = timeline((0.1, 1), (0.2, 4), (0.3, 5), (0.4, 3), drafted=10, accepted=9)
    assert acceptance_figures.pooled_acceptance([one], 4).acceptance_rate == 0.9
    with pytest.raises(ValueError, match="impossible"):
        acceptance_figures.acceptance_rate(9, 6)


def test_no_drafts_have_no_rate() -> None:
    one = timeline((0.1, 1), (0.2, 1), (0.3, 1), drafted=0, accepted=0)
    found = acceptance_figures.pooled_acceptance([one], 4)
    assert (found.acceptance_rate, found.acceptance_length) == (None, 1.0)


def test_the_pooled_length_is_not_the_mean_of_lengths() -> None:
    long = timeline((0.1, 1), *((0.1 + 0.01 * step, 1) for step in range(1, 10)), drafted=0, accepted=0)
    short = timeline((0.1, 1), (0.2, 4), drafted=3, accepted=3)
    found = acceptance_figures.pooled_acceptance([long, short], 3)
    assert found.acceptance_length == pytest.approx(1.3)
    assert found.per_request_length is not None
    assert found.per_request_length.mean == pytest.approx(2.5)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60))
def test_per_position_rates_multiply_to_the_share_that_got_so_far(steps: list[int]) -> None:
    rates = acceptance_figures.per_position(steps, 6)
    share = 1.0
    for position, rate in enumerate(rates, 1):
        share *= rate or 0.0
        assert share == pytest.approx(sum(count >= position for count in steps) / len(steps))
    assert sum(acceptance_figures.histogram(steps, 6)) == len(steps)


def test_percentiles_carry_their_sample_size() -> None:
    assert statistics.percentile(list(range(1, 11)), 0.9) == pytest.approx(9.1)
    small = statistics.summarise([1.0] * 8)
    assert small is not None
    assert (small.n, small.p95, small.p99) == (8, None, None)
    assert small.reason == "p95 needs n >= 20, n is 8; p99 needs n >= 100, n is 8"
    large = statistics.summarise([float(value) for value in range(100)])
    assert large is not None
    assert (large.p95, large.p99, large.reason) == (pytest.approx(94.05), pytest.approx(98.01), "")
    assert statistics.summarise([]) is None
