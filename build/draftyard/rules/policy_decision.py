"""Turns measured tiers into a policy, and says whether a measured policy keeps what it promises."""

import math
from collections.abc import Sequence

from draftyard.nouns.policy import Policy, PolicyStep
from draftyard.nouns.report import Advice, LoadCrossing, PolicyProof, TierResult
from draftyard.nouns.report_part import Verdict

# With fewer requests in flight than that a step that is left late would hold most of the range.
LEAST_FOR_HYSTERESIS = 3


def decide_policy(
    tiers: Sequence[TierResult], crossing: LoadCrossing | None, evidence: str | None = None
) -> Policy | None:
    """The engine's own drafts up to the crossing, none from the first whole load above it; None without such a tier.

    Where nothing shows a gain at the lowest load, speculation is off at every load. Where the speed-up stays above 1
    there is no step: what lies above the measured range was not measured. `evidence` is the digest of the report.
    """
    closed = sorted((tier for tier in tiers if tier.concurrency), key=lambda tier: tier.concurrency)
    if not closed or crossing is None:
        return None
    threshold: int | None = None
    if crossing.at is not None:
        threshold = math.floor(crossing.at) + 1
    elif closed[0].speedup is not None and closed[0].speedup <= 1.0:
        threshold = 1
    steps = () if threshold is None else (PolicyStep(running=threshold, max_draft_len=0),)
    hysteresis = 1 if threshold is not None and threshold >= LEAST_FOR_HYSTERESIS else 0
    return Policy(version=1, steps=steps, hysteresis=hysteresis, enforced=False, evidence=evidence)


def threshold_of(policy: Policy) -> int | None:
    """The load from which on a policy switches speculation off; None when it never does."""
    return next((step.running for step in policy.steps if step.max_draft_len == 0), None)


def policy_words(policy: Policy) -> str:
    """A policy in a sentence."""
    threshold = threshold_of(policy)
    if threshold is None:
        return "speculate at every load that was measured"
    if threshold == 1:
        return "do not speculate"
    return f"speculate below {threshold} requests in flight, not from {threshold} on"


def prove_policy(tiers: Sequence[TierResult], tolerance: float) -> PolicyProof | None:
    """Policy against the better of the other two arms at every tier that has it; None when none has.

    A tier fails when the whole interval of the policy's rate over that arm's lies below 1 - tolerance, and is open
    when the interval holds that bound: only an interval that lies above it proves the policy.
    """
    with_policy = [tier for tier in tiers if tier.policy is not None]
    if not with_policy:
        return None
    failing, open_tiers, worst = [], [], math.inf
    for tier in with_policy:
        name = f"{tier.concurrency}" if tier.concurrency else f"{tier.request_rate:g}/s"
        spec_better = (tier.speedup or 0.0) > 1.0
        ratio = tier.policy_over_speculative if spec_better else tier.policy_over_baseline
        span = tier.policy_over_speculative_interval if spec_better else tier.policy_over_baseline_interval
        worst = worst if ratio is None else min(worst, ratio)
        if span is None or ratio is None or span.low < 1.0 - tolerance <= span.high:
            open_tiers.append(name)
        elif span.high < 1.0 - tolerance:
            failing.append(name)
    verdict = Verdict.FAIL if failing else Verdict.SKIPPED if open_tiers else Verdict.PASS
    return PolicyProof(
        tiers=len(with_policy),
        failing=tuple(failing),
        open=tuple(open_tiers),
        worst_ratio=None if math.isinf(worst) else worst,
        tolerance=tolerance,
        verdict=verdict,
    )


def pays_somewhere(tiers: Sequence[TierResult]) -> bool:
    """True when a gain is established at one load at least."""
    return any(tier.advice is Advice.SPECULATE for tier in tiers)
