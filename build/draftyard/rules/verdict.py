"""Where speculation pays: speed-up with its interval, advice per load and per domain, and the crossover."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from draftyard.nouns.report import Advice, ArmResult, Crossover, DomainResult, LoadAxis, LoadCrossing, TierResult
from draftyard.nouns.report_part import Interval
from draftyard.nouns.timeline import Arm, Outcome, RequestRecord
from draftyard.rules.acceptance_figures import pooled_acceptance
from draftyard.rules.arms import achieved_rate_share, arm_result, from_schedule_s
from draftyard.rules.clusters import Estimate, Figures, estimate
from draftyard.rules.crossover import crossing, find_crossing
from draftyard.rules.measure import decode_tokens, e2e_s, ttft_s
from draftyard.rules.worth import judge_worth

LEAST_PAIRS = 4
SEED = 20240229
ALL_DOMAINS = "all"

Pair: TypeAlias = "tuple[RequestRecord, RequestRecord]"
Level: TypeAlias = "tuple[int, float]"


def level_of(record: RequestRecord) -> Level:
    """(concurrency, request rate) of a record; one of the two is 0."""
    return record.concurrency, record.request_rate


def pairs_of(
    records: Sequence[RequestRecord], left: Arm = Arm.BASELINE, right: Arm = Arm.SPECULATIVE
) -> tuple[Pair, ...]:
    """Both records of every prompt that succeeded at the first attempt in both arms of one turn at one load."""
    found: dict[tuple[Level, int, str], dict[Arm, RequestRecord]] = {}
    for record in records:
        if record.timeline.outcome is Outcome.SUCCESS and record.attempts == 1:
            found.setdefault((level_of(record), record.turn, record.prompt_id), {})[record.arm] = record
    whole = [arms for _, arms in sorted(found.items()) if left in arms and right in arms]
    return tuple((arms[left], arms[right]) for arms in whole)


def names_of(pairs: Sequence[Pair]) -> tuple[list[tuple[Level, int, str]], list[str]]:
    """Clusters of pairs: by turn (each prompt by itself where turns are not known), and by prompt."""
    turns = [(level_of(left), left.turn, "" if left.turn >= 0 else left.prompt_id) for left, _ in pairs]
    return turns, [left.prompt_id for left, _ in pairs]


def log_rate(sums: Figures) -> Figures:
    """Logarithm of the ratio of output rates, from sums of (tokens, seconds, tokens, seconds), shape [..., 4]."""
    return np.asarray(np.log((sums[..., 2] / sums[..., 3]) / (sums[..., 0] / sums[..., 1])), dtype=np.float64)


def log_mean(sums: Figures) -> Figures:
    """Mean of logarithms, from sums of (logarithm, 1), shape [..., 2]."""
    return np.asarray(sums[..., 0] / sums[..., 1], dtype=np.float64)


def rate_estimate(pairs: Sequence[Pair]) -> Estimate | None:
    """Output rate of the right arm over the left one's.

    A rate is tokens over request seconds, both summed; in a closed loop it is the throughput over the concurrency
    (Little's law), without the idle places at the end of a block.
    """
    rows = [
        (left.timeline.tokens, from_schedule_s(left), right.timeline.tokens, from_schedule_s(right))
        for left, right in pairs
    ]
    return estimate(np.array(rows, dtype=np.float64), names_of(pairs), log_rate, SEED) if rows else None


def tpot_estimate(pairs: Sequence[Pair]) -> Estimate | None:
    """Token-weighted TPOT of the left arm over that of the right one; None when an answer has no decode tokens."""
    rows = []
    for pair in pairs:
        row: list[float] = []
        for one in pair:
            row += [decode_tokens(one.timeline), e2e_s(one.timeline) - (ttft_s(one.timeline) or 0.0)]
        rows.append(row)
    if not rows or not all(row[0] and row[2] for row in rows):
        return None
    return estimate(np.array(rows, dtype=np.float64), names_of(pairs), log_rate, SEED)


def domain_estimate(pairs: Sequence[Pair]) -> Estimate | None:
    """The geometric mean of the pairs' own rate ratios: loads may differ between them."""
    found = [rate_estimate([pair]) for pair in pairs]
    rows = [(one.log_value, 1.0) for one in found if one is not None]
    return estimate(np.array(rows), names_of(pairs), log_mean, SEED) if rows else None


def advise(ratio: float | None, span: Interval | None, pairs: int) -> tuple[Advice, str]:
    """Advice in one word and why: only an interval that lies wholly on one side of 1 decides."""
    if ratio is None or span is None:
        return Advice.NEUTRAL, "no prompt succeeded in both arms"
    words = f"{ratio:.2f}x (95 % interval {span.low:.2f} to {span.high:.2f}, n = {pairs})"
    if pairs < LEAST_PAIRS:
        return Advice.NEUTRAL, f"{words}: too few prompts to decide, {LEAST_PAIRS} are needed"
    if span.low > 1.0:
        return Advice.SPECULATE, words
    if span.high < 1.0:
        return Advice.DO_NOT_SPECULATE, words
    return Advice.NEUTRAL, f"{words}: the interval holds 1, the difference is not established"


def judge_tier(
    concurrency: int,
    records: Sequence[RequestRecord],
    draft_length: int,
    evidence: str,
    measured_at: str,
    reused: bool,
    kv_cache_share: float | None = None,
) -> TierResult:
    """Everything that follows from the raw records of one tier."""
    arms = {arm: [record for record in records if record.arm is arm] for arm in Arm}
    baseline, speculative = arm_result(arms[Arm.BASELINE]), arm_result(arms[Arm.SPECULATIVE])
    pairs = pairs_of(records)
    accepted = pooled_acceptance([right.timeline for _, right in pairs], draft_length)
    rate, tpot = rate_estimate(pairs), tpot_estimate(pairs)
    ratio, span = (None, None) if rate is None else (rate.value, rate.interval())
    advice, reason = advise(ratio, span, len(pairs))
    length = accepted.acceptance_length
    cost = length / tpot.value if length is not None and tpot is not None else None
    worth = judge_worth(pairs, accepted, cost, draft_length, advice, kv_cache_share)
    reason = "; ".join([reason, *worth.causes])
    before, after = baseline.output_tokens_per_s, speculative.output_tokens_per_s
    found = TierResult(
        concurrency=concurrency,
        baseline=baseline,
        speculative=speculative,
        pairs=len(pairs),
        speedup=ratio,
        speedup_interval=span,
        wall_speedup=after / before if before and after else None,
        tpot_ratio=None if tpot is None else tpot.value,
        tpot_ratio_interval=None if tpot is None else tpot.interval(),
        acceptance=accepted,
        step_cost=cost,
        advice=advice,
        reason=reason,
        evidence=evidence,
        measured_at=measured_at,
        reused=reused,
        turns=len({record.turn for record in records if record.turn >= 0}),
        request_rate=max((record.request_rate for record in records), default=0.0),
        achieved_rate_share=achieved_rate_share(records),
        worth=worth,
        recovered=sum(record.attempts > 1 for record in records),
    )
    return with_policy(found, records, arm_result(arms[Arm.POLICY])) if arms[Arm.POLICY] else found


def with_policy(tier: TierResult, records: Sequence[RequestRecord], policy: ArmResult) -> TierResult:
    """The third arm beside the other two."""
    over_baseline = rate_estimate(pairs_of(records, Arm.BASELINE, Arm.POLICY))
    over_speculative = rate_estimate(pairs_of(records, Arm.SPECULATIVE, Arm.POLICY))
    return tier.model_copy(
        update={
            "policy": policy,
            "policy_over_baseline": None if over_baseline is None else over_baseline.value,
            "policy_over_baseline_interval": None if over_baseline is None else over_baseline.interval(),
            "policy_over_speculative": None if over_speculative is None else over_speculative.value,
            "policy_over_speculative_interval": None if over_speculative is None else over_speculative.interval(),
        }
    )


def by_domain(records: Sequence[RequestRecord]) -> dict[str, list[Pair]]:
    """Pairs of each domain, names in order."""
    grouped: dict[str, list[Pair]] = {}
    for pair in pairs_of(records):
        grouped.setdefault(pair[0].domain, []).append(pair)
    return dict(sorted(grouped.items()))


def judge_domains(
    records: Sequence[RequestRecord], draft_length: int, evidence: Sequence[str]
) -> tuple[DomainResult, ...]:
    """Each domain over all tiers: the geometric mean of the pairs' rate ratios, and the pooled acceptance."""
    results = []
    for domain, pairs in by_domain(records).items():
        found = domain_estimate(pairs)
        ratio, span = (None, None) if found is None else (found.value, found.interval())
        advice, reason = advise(ratio, span, len(pairs))
        results.append(
            DomainResult(
                domain=domain,
                pairs=len(pairs),
                speedup=ratio,
                speedup_interval=span,
                acceptance=pooled_acceptance([right.timeline for _, right in pairs], draft_length),
                advice=advice,
                reason=reason,
                evidence=tuple(evidence),
            )
        )
    return tuple(results)


def find_crossings(records: Sequence[RequestRecord]) -> tuple[LoadCrossing, ...]:
    """The crossings over all prompts and of each domain, along every axis that has tiers."""
    found = []
    for axis in LoadAxis:
        chosen = [record for record in records if (record.request_rate > 0) is (axis is LoadAxis.REQUEST_RATE)]
        groups = {ALL_DOMAINS: list(pairs_of(chosen)), **by_domain(chosen)}
        for domain, pairs in groups.items():
            levels: dict[float, list[Pair]] = {}
            for pair in pairs:
                levels.setdefault(max(level_of(pair[0])), []).append(pair)
            estimates = {level: rate_estimate(listed) for level, listed in levels.items()}
            known = {level: one for level, one in estimates.items() if one is not None}
            crossed = find_crossing(axis, domain, known) if len(known) > 1 or domain == ALL_DOMAINS else None
            found += [] if crossed is None else [crossed]
    return tuple(found)


def find_crossover(tiers: Mapping[int, Sequence[RequestRecord]]) -> Crossover | None:
    """Where speculation stops paying over all prompts along the concurrency; None without a pair."""
    usable = {load: pairs_of(records) for load, records in sorted(tiers.items())}
    estimates = {load: rate_estimate(pairs) for load, pairs in usable.items()}
    known = {load: one for load, one in estimates.items() if one is not None}
    found = find_crossing(LoadAxis.CONCURRENCY, ALL_DOMAINS, {float(load): one for load, one in known.items()})
    if found is None:
        return None
    ratios = [one.value for one in known.values()]
    point = found.at if found.at is not None else crossing(tuple(known), ratios)
    return Crossover(
        concurrency=point,
        interval=found.interval if point is not None else None,
        share_of_resamples=found.share_of_draws,
        text=_crossover_words(tuple(known), ratios, point),
    )


def _crossover_words(loads: Sequence[int], ratios: Sequence[float], point: float | None) -> str:
    reach = f"{loads[0]} to {loads[-1]} concurrent requests" if len(loads) > 1 else f"{loads[0]} concurrent request(s)"
    if point is not None:
        return f"the speed-up falls through 1 at about {point:.1f} concurrent requests"
    if all(ratio > 1.0 for ratio in ratios):
        return f"none within the measured range ({reach}): the speed-up stays above 1"
    if all(ratio <= 1.0 for ratio in ratios):
        return f"none within the measured range ({reach}): the speed-up never exceeds 1"
    return f"none within the measured range ({reach}): the speed-up rises through 1 with the load"
