"""The gates of a recipe, the exit code they lead to, and the sentences a person reads first."""

from collections.abc import Sequence

from draftyard.nouns.errors import ExitCode
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.losslessness import Losslessness
from draftyard.nouns.report import Advice, Check, Crossover, GateResult, TierResult, VariantResult
from draftyard.nouns.report_part import Verdict
from draftyard.nouns.verification import Gates
from draftyard.rules.lossless_verdict import lossless_verdict

NOT_SET = "not set: reported only"
CLIENT_CPU_LIMIT = 0.5
CLIENT_LAG_LIMIT_MS = 10.0
ACHIEVED_RATE = 0.95
MISMATCH_LIMIT = 0.01
SPEAKING_NAMES = {
    SpeculatorKind.NONE: "Plain decoding",
    SpeculatorKind.NGRAM: "N-gram lookup",
    SpeculatorKind.DRAFT_TARGET: "The draft model",
    SpeculatorKind.MEDUSA: "Medusa",
    SpeculatorKind.EAGLE: "EAGLE",
    SpeculatorKind.EAGLE3: "EAGLE-3",
    SpeculatorKind.MTP: "The target's own prediction module",
    SpeculatorKind.LOOKAHEAD: "Lookahead",
}


def count_words(checks: Sequence[Check]) -> str:
    """How many checks pass, and how many were not made."""
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    words = f"{counts[Verdict.PASS]} of {len(checks)} pass"
    return words + (f", {counts[Verdict.SKIPPED]} skipped" if counts[Verdict.SKIPPED] else "")


def smoke_gate(variant: str, checks: Sequence[Check]) -> GateResult:
    """No smoke check fails."""
    failed = [check.name for check in checks if check.verdict is Verdict.FAIL]
    return GateResult(
        variant=variant,
        gate="smoke",
        required="no check fails",
        measured=count_words(checks),
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        reason="; ".join(failed),
    )


def lossless_gate(variant: str, gates: Gates, found: Losslessness) -> GateResult:
    """Every answer compared is the same, apart from few that part at a tie; none compared is no evidence."""
    verdict, reason = lossless_verdict(found)
    if not gates.lossless:
        verdict = Verdict.SKIPPED
    return GateResult(
        variant=variant,
        gate="lossless",
        required="all answers identical" if gates.lossless else NOT_SET,
        measured=f"{found.identical} of {found.compared} answers identical",
        verdict=verdict,
        reason=reason,
    )


def speedup_gate(variant: str, gates: Gates, tiers: Sequence[TierResult]) -> GateResult:
    """The speed-up at the recipe's concurrency reaches the recipe's least."""
    at = gates.min_speedup_at
    chosen = next((tier for tier in tiers if tier.concurrency == at), None)
    ratio = chosen.speedup if chosen is not None else None
    reason = "" if ratio is not None else f"concurrency {at} was not measured"
    verdict = Verdict.SKIPPED
    if gates.min_speedup is not None and ratio is not None:
        verdict = Verdict.PASS if ratio >= gates.min_speedup else Verdict.FAIL
    return GateResult(
        variant=variant,
        gate="min_speedup",
        required=NOT_SET if gates.min_speedup is None else f"at least {gates.min_speedup:g} at concurrency {at}",
        measured="none" if ratio is None else f"{ratio:.2f}",
        verdict=verdict,
        reason=reason,
    )


def ttft_gate(variant: str, gates: Gates, tiers: Sequence[TierResult]) -> GateResult:
    """The first token comes nowhere later than allowed; a tier fails when its whole interval lies above the limit."""
    limit = gates.max_ttft_regression
    taxes = [
        (tier, tier.worth.ttft_tax, tier.worth.ttft_tax_interval)
        for tier in tiers
        if tier.worth is not None and tier.worth.ttft_tax is not None
    ]
    worst = max((tax for _, tax, _ in taxes if tax is not None), default=None)
    verdict, late = Verdict.SKIPPED, list[str]()
    if limit is not None and taxes:
        late = [tier_name(tier) for tier, _, span in taxes if span is not None and span.low > 1 + limit]
        verdict = Verdict.FAIL if late else Verdict.PASS
    return GateResult(
        variant=variant,
        gate="max_ttft_regression",
        required=NOT_SET if limit is None else f"TTFT at most {1 + limit:.2f} times that without speculation",
        measured="none" if worst is None else f"{worst:.2f} times at worst",
        verdict=verdict,
        reason=f"established at {', '.join(late)}" if late else "" if taxes else "no TTFT was measured",
    )


def acceptance_gates(variant: str, gates: Gates, found: VariantResult) -> tuple[GateResult, ...]:
    """Each floor of the recipe against the pooled acceptance length of its domain."""
    lengths = {domain.domain: domain.acceptance.acceptance_length for domain in found.domains}
    lengths["all"] = found.acceptance.acceptance_length if found.acceptance is not None else None
    results = []
    for domain, floor in sorted(gates.min_acceptance_length.items()):
        length = lengths.get(domain)
        verdict = Verdict.SKIPPED if length is None else Verdict.PASS if length >= floor else Verdict.FAIL
        results.append(
            GateResult(
                variant=variant,
                gate=f"min_acceptance_length: {domain}",
                required=f"at least {floor:g} tokens a step",
                measured="none" if length is None else f"{length:.2f}",
                verdict=verdict,
                reason="" if length is not None else "no prompt of this domain was measured",
            )
        )
    return tuple(results)


def policy_gate(variant: str, gates: Gates, found: VariantResult) -> GateResult:
    """The policy is nowhere slower than the better of the other two arms, within the tolerance."""
    proof = None if found.policy is None else found.policy.proof
    verdict, reason, measured = Verdict.SKIPPED, "the policy was not measured", "none"
    if proof is not None:
        measured = "none" if proof.worst_ratio is None else f"{proof.worst_ratio:.2f} times the better arm at worst"
        reason = f"slower at {', '.join(proof.failing)}" if proof.failing else ""
        if proof.open and not proof.failing:
            reason = f"not settled at {', '.join(proof.open)}: measure more requests"
        verdict = proof.verdict
    if not gates.policy:
        verdict = Verdict.SKIPPED
    return GateResult(
        variant=variant,
        gate="policy",
        required=f"at least {1 - gates.policy_tolerance:.2f} times the better arm" if gates.policy else NOT_SET,
        measured=measured,
        verdict=verdict,
        reason=reason,
    )


def golden_gate(variant: str, differences: Sequence[str], missing: Sequence[str]) -> GateResult:
    """Acceptance is what it was at the release; rows that were not measured leave it open."""
    verdict = Verdict.FAIL if differences else Verdict.SKIPPED if missing else Verdict.PASS
    return GateResult(
        variant=variant,
        gate="golden acceptance",
        required="as at the release",
        measured="differs" if differences else "not all measured" if missing else "the same",
        verdict=verdict,
        reason="; ".join(differences or missing),
    )


def tier_name(tier: TierResult) -> str:
    """A tier's load in words."""
    return f"{tier.request_rate:g} requests/s" if tier.request_rate else f"concurrency {tier.concurrency}"


def error_gate(variant: str, gates: Gates, tiers: Sequence[TierResult]) -> GateResult:
    """The share of requests that failed, over all tiers and both arms."""
    arms = [arm for tier in tiers for arm in (tier.baseline, tier.speculative, tier.policy) if arm is not None]
    asked = sum(arm.requests for arm in arms)
    failed = sum(arm.requests - arm.succeeded for arm in arms)
    kinds = sorted({kind for arm in arms for kind in arm.failures})
    verdict = Verdict.SKIPPED
    if asked:
        verdict = Verdict.PASS if failed / asked <= gates.max_error_rate else Verdict.FAIL
    return GateResult(
        variant=variant,
        gate="max_error_rate",
        required=f"at most {gates.max_error_rate:.1%} of requests fail" if gates.max_error_rate else "no request fails",
        measured=f"{failed} of {asked} requests failed",
        verdict=verdict,
        reason=", ".join(kinds) if asked else "no request was measured",
    )


def judge_gates(gates: Gates, variant: VariantResult, smoke_only: bool = False) -> tuple[GateResult, ...]:
    """All gates of one variant; one that does not speculate, or was not measured on purpose, has its smoke checks."""
    smoke = smoke_gate(variant.name, variant.checks)
    if variant.speculator == SpeculatorKind.NONE or smoke_only:
        return (smoke,)
    return (
        smoke,
        lossless_gate(variant.name, gates, variant.losslessness),
        speedup_gate(variant.name, gates, variant.tiers),
        ttft_gate(variant.name, gates, variant.tiers),
        *acceptance_gates(variant.name, gates, variant),
        policy_gate(variant.name, gates, variant),
        error_gate(variant.name, gates, (*variant.tiers, *variant.rate_tiers, *variant.proof_tiers)),
    )


def outcome_of(gates: Sequence[GateResult]) -> tuple[str, ExitCode]:
    """failed when a gate fails; incomplete when a gate that is set has no evidence; else passed."""
    if any(gate.verdict is Verdict.FAIL for gate in gates):
        return "failed", ExitCode.WORK_FAILED
    if not gates or any(gate.verdict is Verdict.SKIPPED and gate.required != NOT_SET for gate in gates):
        return "incomplete", ExitCode.ENVIRONMENT
    return "passed", ExitCode.DONE


def variant_headline(
    speculator: SpeculatorKind, tiers: Sequence[TierResult], found: Losslessness, crossover: Crossover | None
) -> str:
    """What one variant means for whoever decides, in a plain sentence or two."""
    name = SPEAKING_NAMES.get(speculator, speculator.value)
    if speculator is SpeculatorKind.NONE:
        return f"{name} is the yardstick: it was checked, not compared."
    if not tiers:
        return f"{name} was not measured."
    pays = [tier.concurrency for tier in tiers if tier.advice is Advice.SPECULATE]
    hurts = [tier.concurrency for tier in tiers if tier.advice is Advice.DO_NOT_SPECULATE]
    same = _sameness(found)
    first = tiers[0]
    speed = "" if first.speedup is None else f" ({_faster(first.speedup)} at {requests(first.concurrency)})"
    if pays and not hurts:
        words = f"{name} pays{speed}: established for {loads(pays)}"
    elif pays and hurts:
        end = (
            "" if crossover is None or crossover.concurrency is None else f", even at about {crossover.concurrency:.1f}"
        )
        words = f"{name} pays for {loads(pays)}{speed} and costs for {loads(hurts)}{end}"
    elif hurts:
        words = f"{name} does not pay{speed}: it costs for {loads(hurts)}"
    else:
        words = f"{name} makes no established difference{speed}"
    return f"{words}. {same}"


def _sameness(found: Losslessness) -> str:
    if found.compared == 0:
        return "Whether it changes the output was not established."
    if found.identical == found.compared:
        return f"It changed none of {found.compared} compared answers."
    if found.relaxed:
        return "It is lossy: acceptance seems to be relaxed."
    return f"It changed {found.compared - found.identical} of {found.compared} compared answers."


def _faster(ratio: float) -> str:
    return f"{ratio:.2f} times the output rate"


def requests(concurrency: int) -> str:
    """A load in words."""
    return "one request at a time" if concurrency == 1 else f"{concurrency} concurrent requests"


def loads(concurrency: Sequence[int]) -> str:
    """Several loads in words."""
    listed = [str(value) for value in concurrency]
    joined = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
    return f"{joined} concurrent request{'' if listed == ['1'] else 's'}"


def report_headline(outcome: str, variants: Sequence[VariantResult], gates: Sequence[GateResult]) -> str:
    """The sentence on top: what was found, and the best choice at the lowest load among those that hold their gates."""
    failing = sorted({gate.variant for gate in gates if gate.verdict is Verdict.FAIL})
    ranked = [
        (tier.speedup, variant)
        for variant in variants
        for tier in variant.tiers[:1]
        if tier.speedup is not None and tier.advice is Advice.SPECULATE and variant.name not in failing
    ]
    opening = {
        "passed": "Verification passed.",
        "failed": f"Verification failed for {' and '.join(failing)}.",
        "incomplete": "Verification is incomplete: some evidence is missing.",
    }[outcome]
    if not ranked:
        return f"{opening} Nothing is established as both sound and faster than plain decoding at the lowest load."
    ratio, best = max(ranked, key=lambda pair: pair[0])
    load = requests(best.tiers[0].concurrency)
    name = SPEAKING_NAMES.get(SpeculatorKind(best.speculator), best.speculator)
    return f"{opening} {name} is the best choice at {load}: {_faster(ratio)} of plain decoding."


def find_warnings(
    tiers: Sequence[TierResult],
    client_cpu_cores: float | None,
    repeated: bool,
    busy: bool,
    client_lag_ms: float | None = None,
) -> tuple[str, ...]:
    """What a reader must know before trusting the figures."""
    found = []
    if client_lag_ms is not None and client_lag_ms > CLIENT_LAG_LIMIT_MS:
        found.append(
            f"the load client was woken {client_lag_ms:.0f} ms late (p95): it lacks a core of its own, and its times "
            "are later than the server's answers"
        )
    if client_cpu_cores is not None and client_cpu_cores > CLIENT_CPU_LIMIT:
        found.append(f"the load client used {client_cpu_cores:.2f} of a core: it may slow the server it measures")
    if repeated:
        found.append("the pack has fewer test prompts than the tiers ask: some appear in several tiers, in both arms")
    if busy:
        found.append(
            "other work ran on this machine when the measurement began: the intervals do not cover that, measure again"
        )
    for tier in tiers:
        if tier.achieved_rate_share is not None and tier.achieved_rate_share < ACHIEVED_RATE:
            found.append(
                f"{tier_name(tier)}: only {tier.achieved_rate_share:.0%} of the asked rate was reached, the server is "
                "overloaded and its queue grows"
            )
        if tier.recovered:
            found.append(f"{tier_name(tier)}: {tier.recovered} answers came only after a refusal and are not measured")
        for arm in (tier.baseline, tier.speculative):
            if arm.count_mismatch_share > MISMATCH_LIMIT:
                found.append(f"{tier_name(tier)}: token counts are untrusted, ids and counters differ")
        if tier.acceptance.inconsistent_requests:
            found.append(
                f"{tier_name(tier)}: {tier.acceptance.inconsistent_requests} streams contradict the "
                "server's acceptance counter and are left out of the acceptance figures"
            )
    return tuple(dict.fromkeys(found))
