"""Verifies one served repository: checks, losslessness, where it pays, the policy that follows, and that policy."""

import asyncio
import math
import time
from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.endpoint import Endpoint
from draftyard.doors.report_files import Cell, EvidenceStore
from draftyard.doors.verification_files import write_policy_file
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.load import CacheUse, LoadLevel, Profile
from draftyard.nouns.losslessness import Losslessness
from draftyard.nouns.policy import Policy
from draftyard.nouns.prompt import Prompt
from draftyard.nouns.report import CostLaw, PolicyResult, TierResult, VariantResult
from draftyard.nouns.timeline import RequestRecord, Timeline
from draftyard.nouns.verification import Verify
from draftyard.rules.acceptance_alarms import alarms
from draftyard.rules.acceptance_figures import pooled_acceptance
from draftyard.rules.gates import find_warnings, variant_headline
from draftyard.rules.load_plan import repeats
from draftyard.rules.next_load import around
from draftyard.rules.policy_decision import decide_policy, policy_words, prove_policy, threshold_of
from draftyard.rules.smoke_checks import joined, losslessness
from draftyard.rules.verdict import (
    by_domain,
    find_crossings,
    find_crossover,
    judge_domains,
    judge_tier,
    level_of,
    pairs_of,
)
from draftyard.rules.worth import judge_cost_law
from draftyard.verbs.load_client import ArmSettings
from draftyard.verbs.lossless import LosslessPlan, check_lossless_passes
from draftyard.verbs.perf import Budget, Load, Measurer, Show
from draftyard.verbs.replay import EngineReplay
from draftyard.verbs.smoke import ServedVariant, SmokeResult, smoke

# What a profile does beside the smoke checks: the answers it compares, and tiers beyond those of the recipe.
LOSSLESS_PLANS = {
    Profile.PERF: LosslessPlan(each_domain=0, max_tokens=32),
    Profile.FULL: LosslessPlan(each_domain=1, max_tokens=40, draws=100),
}
EXTRA_TIERS = {Profile.PERF: 0, Profile.FULL: 2}
# With a time to keep, points are added until it is over.
EXTRA_TIERS_IN_TIME = 8
EXPLORING_SHARE = 0.55
# The entry looks at its policy file ten times a second.
POLICY_SEEN_S = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """One variant to verify, how thoroughly, and until when (by the process's clock; None: until done).

    `live_policy` is a file that the running server follows; without one the client chooses draft lengths in its place.
    """

    variant: ServedVariant
    settings: Verify
    profile: Profile
    prompts: tuple[Prompt, ...]
    host: str
    metrics_url: str
    deadline_s: float | None = None
    live_policy: Path | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was seen of one variant, before any of it is judged."""

    server: str
    smoke: SmokeResult
    lossless: Losslessness | None = None
    tiers: tuple[Cell, ...] = ()
    rates: tuple[Cell, ...] = ()
    proof: tuple[Cell, ...] = ()
    policy: Policy | None = None
    applied_by: str = "client"
    probe: Cell | None = None

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, each once."""
        return (*self.tiers, *self.rates, *self.proof, *(() if self.probe is None else (self.probe,)))


async def observe(job: Job, grpc_url: str, store: EvidenceStore, reuse: bool, show: Show) -> Observed:
    """Ask a running server everything the profile wants to know."""
    variant = job.variant
    async with Endpoint(grpc_url) as endpoint:
        identity = await endpoint.identity()
        server = f"{identity.name} {identity.version}"
        show("smoke checks")
        found = await smoke(endpoint, job.metrics_url, variant, job.prompts)
        if variant.speculator is SpeculatorKind.NONE or job.profile is Profile.SMOKE:
            return Observed(server, found)
        show("the same answers, without and with speculation")
        source = EngineReplay(variant.repository)
        plan = LOSSLESS_PLANS[job.profile]
        lossless = await check_lossless_passes(endpoint, job.prompts, plan, source, variant.speculating)
        measurer = Measurer(endpoint, _load(job), store, reuse, show)
        return await _measure(job, measurer, Observed(server, found, lossless), show)


def _load(job: Job) -> Load:
    return Load(
        repository_key=job.variant.repository_key,
        prompts=job.prompts,
        settings=job.settings,
        host=job.host,
        draft_length=job.variant.max_draft_len,
        most_concurrency=max(2 * job.variant.max_batch_size, job.settings.concurrency[-1]),
        metrics_url=job.metrics_url,
    )


async def _measure(job: Job, measurer: Measurer, seen: Observed, show: Show) -> Observed:
    """Tiers first; then, where the profile is full, the policy that follows from them, in a third arm."""
    variant = job.variant
    full = job.profile is Profile.FULL
    arms = ArmSettings(variant.max_draft_len, variant.policy, served=variant.policy is not None)
    extra = EXTRA_TIERS[job.profile] if job.deadline_s is None else EXTRA_TIERS_IN_TIME
    if job.deadline_s is not None:
        now = time.monotonic()
        share = EXPLORING_SHARE if full else 1.0
        measurer.budget = Budget(now + share * (job.deadline_s - now))
    tiers = await measurer.explore(arms, extra)
    records = _records(tiers)
    judged = _judged(variant, tiers)
    crossing = next((one for one in find_crossings(records) if one.domain == "all"), None)
    policy = variant.policy if variant.policy is not None else decide_policy(judged, crossing)
    if policy is not None:
        show(f"policy: {policy_words(policy)}")
        arms = ArmSettings(variant.max_draft_len, policy, served=await _deployed(job, policy))
    measurer.budget.deadline_s = job.deadline_s
    measured = tuple(tier.concurrency for tier in judged)
    proof: tuple[Cell, ...] = ()
    if full and policy is not None:
        proof = await measurer.prove(arms, proof_levels(policy, measured, variant.policy is not None))
    rates = await measurer.rates(arms if full else ArmSettings(variant.max_draft_len))
    probe = None
    if full and variant.draft_depth is None and variant.max_draft_len > 1:
        probe = await measurer.probe(shorter(variant.max_draft_len))
    by = "repository" if variant.policy is not None else "server" if arms.served else "client"
    return Observed(seen.server, seen.smoke, seen.lossless, tiers, rates, proof, policy, by, probe)


def shorter(draft_length: int) -> int:
    """The draft length at which costs are measured a second time."""
    return max(1, draft_length // 2)


async def _deployed(job: Job, policy: Policy) -> bool:
    """True when the server itself follows the policy; a file that it looks at is replaced by this one."""
    if job.variant.policy is not None:
        return True
    if job.live_policy is None:
        return False
    write_policy_file(policy, None, job.live_policy)
    await asyncio.sleep(POLICY_SEEN_S)
    return True


def proof_levels(policy: Policy, measured: tuple[int, ...], served: bool) -> tuple[LoadLevel, ...]:
    """Loads at which a policy is to be proved, those next to its threshold first.

    Where the server applies it, the explored tiers have the policy's arm already, and only new ones are added.
    """
    threshold = threshold_of(policy)
    extra = () if threshold is None else around(threshold, measured if served else ())
    if served:
        return tuple(LoadLevel(load) for load in extra)
    middle = math.log2(threshold) if threshold is not None else math.log2(max(measured))
    rest = sorted(measured, key=lambda load: abs(math.log2(load) - middle))
    return tuple(LoadLevel(load) for load in dict.fromkeys((*extra, *rest)))


def _records(cells: tuple[Cell, ...]) -> tuple[RequestRecord, ...]:
    return tuple(record for cell in cells for record in cell.records)


def _judged(variant: ServedVariant, cells: tuple[Cell, ...]) -> tuple[TierResult, ...]:
    """One result for each load; cells of one load are taken together."""
    grouped: dict[tuple[int, float], list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(level_of(cell.records[0]), []).append(cell)
    return tuple(_judged_load(variant, listed) for listed in grouped.values())


def _judged_load(variant: ServedVariant, cells: list[Cell]) -> TierResult:
    records = _records(tuple(cells))
    digests = [cell.file.sha256 for cell in cells]
    shares = [cell.facts.kv_cache_share for cell in cells if cell.facts.kv_cache_share is not None]
    found = judge_tier(
        concurrency=records[0].concurrency,
        records=records,
        draft_length=variant.longest_run,
        evidence=digests[0],
        measured_at=cells[-1].facts.measured_at,
        reused=all(cell.reused for cell in cells),
        kv_cache_share=max(shares, default=None),
    )
    domains = judge_domains(records, variant.longest_run, digests)
    return found.model_copy(update={"domains": domains, "more_evidence": tuple(digests[1:])})


def speculative_by_domain(cells: tuple[Cell, ...]) -> dict[str, list[Timeline]]:
    """The speculative answers that count, by domain."""
    grouped = by_domain(_records(cells))
    return {domain: [right.timeline for _, right in pairs] for domain, pairs in grouped.items()}


def judge(job: Job, seen: Observed, busy: bool, policy_path: str) -> VariantResult:
    """Turn raw records into results; every result names the digest of the records it came from."""
    variant, settings = job.variant, job.settings
    tiers, rates, proof = (_judged(variant, cells) for cells in (seen.tiers, seen.rates, seen.proof))
    everything = _records((*seen.tiers, *seen.rates))
    parts = [seen.smoke.losslessness] if seen.lossless is None else [seen.smoke.losslessness, seen.lossless]
    if settings.prefix_cache is CacheUse.KEPT:
        parts += [_tier_losslessness(cell.records) for cell in seen.tiers]
    lossless = joined(parts)
    loads: dict[int, list[RequestRecord]] = {}
    for record in _records(seen.tiers):
        loads.setdefault(record.concurrency, []).append(record)
    crossover = find_crossover(loads)
    cores = max((cell.facts.client_cpu_cores for cell in seen.cells), default=None)
    lag_ms = max((cell.facts.client_lag_ms for cell in seen.cells), default=None)
    speculative = [right.timeline for _, right in pairs_of(everything)]
    acceptance = pooled_acceptance(speculative, variant.longest_run) if speculative else None
    load = _load(job)
    sizes = sum(load.level_size(LoadLevel(tier.concurrency)) for tier in tiers)
    repeated = bool(tiers) and repeats(job.prompts, 1, sizes)
    found_alarms = alarms(acceptance, tiers, variant.longest_run)
    return VariantResult(
        name=variant.name,
        speculator=variant.speculator.value,
        repository_key=variant.repository_key,
        server=seen.server,
        headline=variant_headline(variant.speculator, tiers, lossless, crossover),
        checks=seen.smoke.checks,
        losslessness=lossless,
        tiers=tiers,
        domains=judge_domains(everything, variant.longest_run, [cell.file.sha256 for cell in seen.tiers]),
        acceptance=acceptance,
        crossover=crossover,
        client_cpu_cores=cores,
        warnings=(*find_warnings((*tiers, *rates, *proof), cores, repeated, busy, lag_ms), *found_alarms),
        evidence=tuple(cell.file for cell in seen.cells),
        crossings=find_crossings(everything),
        policy=_policy(job, seen, (*tiers, *rates, *proof), policy_path),
        rate_tiers=rates,
        proof_tiers=proof,
        alarms=found_alarms,
        client_lag_ms=lag_ms,
        cost_law=_cost_law(variant, seen, tiers),
    )


def _cost_law(variant: ServedVariant, seen: Observed, tiers: tuple[TierResult, ...]) -> CostLaw | None:
    if seen.probe is None or not tiers:
        return None
    short = _judged(variant, (seen.probe,))[0]
    return judge_cost_law(short, tiers[0], (shorter(variant.max_draft_len), variant.max_draft_len))


def _policy(job: Job, seen: Observed, tiers: tuple[TierResult, ...], path: str) -> PolicyResult | None:
    if seen.policy is None:
        return None
    return PolicyResult(
        policy=seen.policy,
        words=policy_words(seen.policy),
        source=seen.applied_by,
        path=path,
        proof=prove_policy(tiers, job.settings.gates.policy_tolerance),
    )


def _tier_losslessness(records: tuple[RequestRecord, ...]) -> Losslessness:
    """Where prompts go out as they are, the measured pairs say whether the output changed, too, also under load."""
    pairs = [(left.prompt_id, left.timeline, right.timeline) for left, right in pairs_of(records)]
    return losslessness(f"concurrency {records[0].concurrency}", pairs)
