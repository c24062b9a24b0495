"""Why speculation pays at a load, or does not: what a step costs against what it yields, and what else weighs."""

from collections.abc import Sequence

import numpy as np

from draftyard.nouns.report import Acceptance, Advice, CostLaw, TierResult, Worth
from draftyard.nouns.report_part import Interval
from draftyard.nouns.timeline import RequestRecord, Timeline
from draftyard.rules.measure import e2e_s, token_weighted_tpot_s, ttft_s
from draftyard.rules.statistics import P95_LEAST_SAMPLES, percentile, resample_indices

SEED = 20240301
INPUT_TO_OUTPUT = 10
PREFILL_DOMINATES = 0.5
KV_SQUEEZED = 0.9
LOW_ACCEPTANCE = 1.2


def tokens_for_rate(rate: float, draft_length: int) -> float:
    """Expected tokens of a step whose drafts are accepted with `rate` each: (1 - rate^(k+1)) / (1 - rate).

    Leviathan et al. 2023, equation 1. Acceptance falls along a draft, so that it is an upper bound for long drafts.
    """
    return sum(rate**position for position in range(draft_length + 1))


def break_even_rate(step_cost: float, draft_length: int) -> float | None:
    """The acceptance rate at which a step of that cost yields as much as plain steps; None when none can."""
    if step_cost <= 1.0:
        return 0.0
    if step_cost > draft_length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_for_rate(middle, draft_length) < step_cost else (low, middle)
    return high


def cost_law(short: tuple[int, float], long: tuple[int, float]) -> tuple[float, float]:
    """(r, o) of cost = 1 + k r + o, from the costs measured at two draft lengths k; ValueError when these are equal.

    r is what one drafted token costs in plain steps, o what each step costs beside that.
    """
    if short[0] == long[0]:
        raise ValueError("two different draft lengths are needed")
    each = (long[1] - short[1]) / (long[0] - short[0])
    return each, short[1] - 1.0 - short[0] * each


def best_length(per_position: Sequence[float | None], each: float, overhead: float) -> int:
    """The draft length with the most tokens for its cost, 0 when plain steps yield as much (0 also without rates)."""
    best, most, reached, yielded = 0, 1.0, 1.0, 1.0
    for length, rate in enumerate(per_position, 1):
        reached *= rate or 0.0
        yielded += reached
        cost = 1.0 + length * each + overhead
        if cost > 0 and yielded / cost > most:
            best, most = length, yielded / cost
    return best


def judge_cost_law(short: TierResult, long: TierResult, lengths: tuple[int, int]) -> CostLaw | None:
    """The law from the same tier at two draft lengths; None where a cost was not measured."""
    if short.step_cost is None or long.step_cost is None:
        return None
    each, overhead = cost_law((lengths[0], short.step_cost), (lengths[1], long.step_cost))
    return CostLaw(
        concurrency=long.concurrency,
        lengths=lengths,
        costs=(short.step_cost, long.step_cost),
        per_drafted_token=each,
        overhead=overhead,
        best_length=best_length(long.acceptance.per_position, each, overhead),
        evidence=short.evidence,
    )


def speedup_at(left: Sequence[Timeline], right: Sequence[Timeline], input_per_output: float) -> float | None:
    """E2E without over with speculation, were there so many input tokens to each output token.

    Prefill time is taken as proportional to the input: TTFT over input tokens, both summed. None without counts.
    """
    seconds = []
    for timelines in (left, right):
        counts = [timeline.input_tokens for timeline in timelines]
        total = sum(count or 0 for count in counts)
        tpot = token_weighted_tpot_s(timelines)
        if tpot is None or not total or None in counts:
            return None
        prefill = sum(ttft_s(timeline) or 0.0 for timeline in timelines) / total
        seconds.append(prefill * input_per_output + tpot)
    return seconds[0] / seconds[1] if seconds[1] > 0 else None


def ttft_tax(left: Sequence[Timeline], right: Sequence[Timeline]) -> tuple[float | None, Interval | None, str]:
    """Tail of TTFT in the right arm over that in the left one, its interval, and which quantile that is.

    Pairs are resampled together; p95 where there are enough of them, else the median.
    """
    waits = np.array([(ttft_s(one) or 0.0, ttft_s(other) or 0.0) for one, other in zip(left, right, strict=True)])
    if not len(waits) or not (waits > 0).all():
        return None, None, "none"
    share, name = (0.95, "p95") if len(waits) >= P95_LEAST_SAMPLES else (0.5, "p50")
    point = percentile(waits[:, 1].tolist(), share) / percentile(waits[:, 0].tolist(), share)
    draws = np.quantile(waits[resample_indices(len(waits), SEED)], share, axis=1)
    ratios = (draws[:, 1] / draws[:, 0]).tolist()
    return point, Interval(low=percentile(ratios, 0.025), high=percentile(ratios, 0.975)), name


def judge_worth(
    pairs: Sequence[tuple[RequestRecord, RequestRecord]],
    accepted: Acceptance,
    step_cost: float | None,
    draft_length: int,
    advice: Advice,
    kv_cache_share: float | None,
) -> Worth:
    """What a tier's pairs say of the causes; figures that were not measured are None."""
    left, right = [one.timeline for one, _ in pairs], [other.timeline for _, other in pairs]
    total = sum(e2e_s(timeline) for timeline in left)
    share = sum(ttft_s(timeline) or 0.0 for timeline in left) / total if total > 0 else None
    tax, span, quantile = ttft_tax(left, right)
    return Worth(
        break_even_length=step_cost,
        break_even_rate=None if step_cost is None else break_even_rate(step_cost, draft_length),
        prefill_share=share,
        ttft_tax=tax,
        ttft_tax_interval=span,
        ttft_quantile=quantile,
        speedup_at_10_to_1=speedup_at(left, right, INPUT_TO_OUTPUT),
        kv_cache_share=kv_cache_share,
        causes=causes(accepted, step_cost, share, kv_cache_share, advice),
    )


def causes(
    accepted: Acceptance,
    step_cost: float | None,
    prefill_share: float | None,
    kv_cache_share: float | None,
    advice: Advice,
) -> tuple[str, ...]:
    """Sentences for the reader: what a step yields and costs, then what holds the gain down where there is little."""
    found = []
    length = accepted.acceptance_length
    if length is not None and step_cost is not None:
        found.append(f"a step yields {length:.2f} tokens and costs {step_cost:.2f} plain steps")
    if advice is Advice.SPECULATE:
        return tuple(found)
    if accepted.drafted == 0:
        found.append("nothing was drafted")
    elif length is not None and length < LOW_ACCEPTANCE:
        found.append("few drafts are accepted")
    elif length is not None and step_cost is not None and step_cost > length:
        found.append(f"drafting and verifying cost more than they yield: {step_cost:.2f} tokens a step break even")
    if prefill_share is not None and prefill_share > PREFILL_DOMINATES:
        most = 1.0 / prefill_share
        found.append(f"reading the prompt takes {prefill_share:.0%} of the time: no decoding gains beyond {most:.1f}x")
    if kv_cache_share is not None and kv_cache_share > KV_SQUEEZED:
        found.append(f"the KV cache is {kv_cache_share:.0%} full: requests wait for room, and drafts take more of it")
    return tuple(found)
