"""The gates of a recipe, the exit code they lead to, and the sentences a person reads first."""

from collections.abc import Sequence

from draftyard.nouns.errors import ExitCode
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.report import (
    Advice,
    Check,
    Crossover,
    GateResult,
    Losslessness,
    TierResult,
    VariantResult,
    Verdict,
)
from draftyard.nouns.verification import Gates

NOT_SET = "not set: reported only"
CLIENT_CPU_LIMIT = 0.5
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
    """Every answer compared is the same; none compared is no evidence."""
    reason = "; ".join(f"{one.prompt_id} ({one.where}) at token {one.index}" for one in found.divergences[:5])
    verdict = Verdict.PASS if found.identical == found.compared else Verdict.FAIL
    if found.compared == 0:
        verdict, reason = Verdict.SKIPPED, "no answer could be compared"
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
    """The speed-up at concurrency 1 reaches the recipe's least."""
    alone = next((tier for tier in tiers if tier.concurrency == 1), None)
    ratio = alone.speedup if alone is not None else None
    reason = "" if ratio is not None else "concurrency 1 was not measured"
    verdict = Verdict.SKIPPED
    if gates.min_speedup is not None and ratio is not None:
        verdict = Verdict.PASS if ratio >= gates.min_speedup else Verdict.FAIL
    return GateResult(
        variant=variant,
        gate="min_speedup",
        required=NOT_SET if gates.min_speedup is None else f"at least {gates.min_speedup:g} at concurrency 1",
        measured="none" if ratio is None else f"{ratio:.2f}",
        verdict=verdict,
        reason=reason,
    )


def error_gate(variant: str, gates: Gates, tiers: Sequence[TierResult]) -> GateResult:
    """The share of requests that failed, over all tiers and both arms."""
    arms = [arm for tier in tiers for arm in (tier.baseline, tier.speculative)]
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


def judge_gates(gates: Gates, variant: VariantResult) -> tuple[GateResult, ...]:
    """All gates of one variant; one that does not speculate has only its smoke checks."""
    smoke = smoke_gate(variant.name, variant.checks)
    if variant.speculator == SpeculatorKind.NONE:
        return (smoke,)
    return (
        smoke,
        lossless_gate(variant.name, gates, variant.losslessness),
        speedup_gate(variant.name, gates, variant.tiers),
        error_gate(variant.name, gates, variant.tiers),
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
    tiers: Sequence[TierResult], client_cpu_cores: float | None, repeated: bool, busy: bool
) -> tuple[str, ...]:
    """What a reader must know before trusting the figures."""
    found = []
    if client_cpu_cores is not None and client_cpu_cores > CLIENT_CPU_LIMIT:
        found.append(f"the load client used {client_cpu_cores:.2f} of a core: it may slow the server it measures")
    if repeated:
        found.append("the pack has fewer test prompts than the tiers ask: some appear in several tiers, in both arms")
    if busy:
        found.append(
            "other work ran on this machine when the measurement began: the intervals do not cover that, measure again"
        )
    for tier in tiers:
        for arm in (tier.baseline, tier.speculative):
            if arm.count_mismatch_share > MISMATCH_LIMIT:
                found.append(f"concurrency {tier.concurrency}: token counts are untrusted, ids and counters differ")
        if tier.acceptance.inconsistent_requests:
            found.append(
                f"concurrency {tier.concurrency}: {tier.acceptance.inconsistent_requests} streams contradict the "
                "server's acceptance counter and are left out of the acceptance figures"
            )
    return tuple(dict.fromkeys(found))
