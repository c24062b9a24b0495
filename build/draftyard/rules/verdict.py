"""Where speculation pays: speed-up with its interval, advice per load and per domain, and the crossover."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from draftyard.nouns.report import Advice, Crossover, DomainResult, Interval, TierResult
from draftyard.nouns.timeline import Arm, Outcome, RequestRecord
from draftyard.rules.acceptance_figures import pooled_acceptance
from draftyard.rules.arms import arm_result
from draftyard.rules.measure import decode_tokens, e2e_s, ttft_s
from draftyard.rules.statistics import interval, resample_indices

LEAST_PAIRS = 4
SEED = 20240229

Pair: TypeAlias = "tuple[RequestRecord, RequestRecord]"
Indices: TypeAlias = "npt.NDArray[np.int64]"
Figures: TypeAlias = "npt.NDArray[np.float64]"


def pairs_of(records: Sequence[RequestRecord]) -> tuple[Pair, ...]:
    """(baseline, speculative) of every prompt that succeeded in both arms at the same concurrency."""
    found: dict[tuple[int, str], dict[Arm, RequestRecord]] = {}
    for record in records:
        if record.timeline.outcome is Outcome.SUCCESS:
            found.setdefault((record.concurrency, record.prompt_id), {})[record.arm] = record
    whole = [arms for _, arms in sorted(found.items()) if len(arms) == 2]
    return tuple((arms[Arm.BASELINE], arms[Arm.SPECULATIVE]) for arms in whole)


def rate_ratios(pairs: Sequence[Pair], indices: Indices) -> Figures:
    """Output rate of the speculative arm over the baseline's, for each row of indices into the pairs.

    A rate is tokens over request seconds, both summed; in a closed loop it is the throughput over the concurrency
    (Little's law), without the idle places at the end of a block.
    """
    table = np.array(
        [
            (left.timeline.tokens, e2e_s(left.timeline), right.timeline.tokens, e2e_s(right.timeline))
            for left, right in pairs
        ]
    )
    sums = table[indices].sum(axis=-2)
    return np.asarray((sums[..., 2] / sums[..., 3]) / (sums[..., 0] / sums[..., 1]), dtype=np.float64)


def tpot_ratios(pairs: Sequence[Pair], indices: Indices) -> Figures:
    """Token-weighted TPOT of the baseline over that of the speculative arm, for each row of indices."""
    rows = []
    for left, right in pairs:
        row: list[float] = []
        for timeline in (left.timeline, right.timeline):
            row += [e2e_s(timeline) - (ttft_s(timeline) or 0.0), decode_tokens(timeline)]
        rows.append(row)
    sums = np.array(rows)[indices].sum(axis=-2)
    return np.asarray((sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3]), dtype=np.float64)


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
    concurrency: int, records: Sequence[RequestRecord], draft_length: int, evidence: str, measured_at: str, reused: bool
) -> TierResult:
    """Everything that follows from the raw records of one tier."""
    arms = {arm: [record for record in records if record.arm is arm] for arm in Arm}
    baseline, speculative = arm_result(arms[Arm.BASELINE]), arm_result(arms[Arm.SPECULATIVE])
    pairs = pairs_of(records)
    accepted = pooled_acceptance([right.timeline for _, right in pairs], draft_length)
    ratio, span, tpot, tpot_span = None, None, None, None
    if pairs:
        everything, draws = np.arange(len(pairs)), resample_indices(len(pairs), SEED + concurrency)
        ratio, span = float(rate_ratios(pairs, everything)), interval(rate_ratios(pairs, draws).tolist())
        if all(decode_tokens(one.timeline) for pair in pairs for one in pair):
            tpot, tpot_span = float(tpot_ratios(pairs, everything)), interval(tpot_ratios(pairs, draws).tolist())
    advice, reason = advise(ratio, span, len(pairs))
    length = accepted.acceptance_length
    cost = length / tpot if length is not None and tpot else None
    if length is not None and cost is not None:
        reason += f"; a step yields {length:.2f} tokens and costs {cost:.2f} plain steps"
    before, after = baseline.output_tokens_per_s, speculative.output_tokens_per_s
    return TierResult(
        concurrency=concurrency,
        baseline=baseline,
        speculative=speculative,
        pairs=len(pairs),
        speedup=ratio,
        speedup_interval=span,
        wall_speedup=after / before if before and after else None,
        tpot_ratio=tpot,
        tpot_ratio_interval=tpot_span,
        acceptance=accepted,
        step_cost=cost,
        advice=advice,
        reason=reason,
        evidence=evidence,
        measured_at=measured_at,
        reused=reused,
    )


def judge_domains(
    records: Sequence[RequestRecord], draft_length: int, evidence: Sequence[str]
) -> tuple[DomainResult, ...]:
    """Each domain over all tiers: the geometric mean of the pairs' rate ratios, and the pooled acceptance."""
    grouped: dict[str, list[Pair]] = {}
    for pair in pairs_of(records):
        grouped.setdefault(pair[0].domain, []).append(pair)
    results = []
    for domain, pairs in sorted(grouped.items()):
        logs = np.log([float(rate_ratios([pair], np.arange(1))) for pair in pairs])
        draws = np.exp(logs[resample_indices(len(pairs), SEED)].mean(axis=1))
        ratio, span = float(np.exp(logs.mean())), interval(draws.tolist())
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


def crossing(concurrency: Sequence[int], ratios: Sequence[float]) -> float | None:
    """The first load at which the speed-up falls through 1, linear in log2 of the load between tiers; None without."""
    points = list(zip(concurrency, ratios, strict=True))
    for (left, above), (right, below) in itertools.pairwise(points):
        if above > 1.0 >= below:
            share = (above - 1.0) / (above - below)
            return float(2 ** (math.log2(left) + share * (math.log2(right) - math.log2(left))))
    return None


def find_crossover(tiers: Mapping[int, Sequence[RequestRecord]]) -> Crossover | None:
    """Where speculation stops paying, with the middle 95 % over resamples in which the speed-up crosses 1 at all."""
    usable = {load: pairs_of(records) for load, records in sorted(tiers.items())}
    usable = {load: pairs for load, pairs in usable.items() if pairs}
    if not usable:
        return None
    loads = tuple(usable)
    ratios = [float(rate_ratios(pairs, np.arange(len(pairs)))) for pairs in usable.values()]
    draws = [rate_ratios(pairs, resample_indices(len(pairs), SEED + load)) for load, pairs in usable.items()]
    found = [crossing(loads, [float(value) for value in column]) for column in zip(*draws, strict=True)]
    seen = [value for value in found if value is not None]
    point = crossing(loads, ratios)
    return Crossover(
        concurrency=point,
        interval=interval(seen) if point is not None and seen else None,
        share_of_resamples=len(seen) / len(found),
        text=_crossover_words(loads, ratios, point),
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
