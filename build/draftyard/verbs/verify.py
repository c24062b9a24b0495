"""Proves of served repositories that speculation changes nothing and where it pays; ends in a report."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from draftyard import __version__
from draftyard.doors.endpoint import Endpoint
from draftyard.doors.measuring_host import now_utc, read_environment
from draftyard.doors.prompts import pack_digest, read_prompts
from draftyard.doors.report_files import Cell, EvidenceStore, write_report
from draftyard.nouns.digest import digest
from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.prompt import Prompt
from draftyard.nouns.report import Environment, Losslessness, Report, TierResult, VariantResult
from draftyard.nouns.timeline import RequestRecord
from draftyard.nouns.verification import Verify
from draftyard.rules.acceptance_figures import pooled_acceptance
from draftyard.rules.definitions import DEFINITIONS, METHOD
from draftyard.rules.gates import find_warnings, judge_gates, outcome_of, report_headline, variant_headline
from draftyard.rules.load_plan import repeats
from draftyard.rules.smoke_checks import joined, losslessness
from draftyard.rules.verdict import find_crossover, judge_domains, judge_tier, pairs_of
from draftyard.verbs.perf import Load, Show, measure_tiers
from draftyard.verbs.smoke import ServedVariant, SmokeResult, smoke

__all__ = ["ServedVariant", "ServerStarter", "ServerUrls", "serve_embedded", "verify"]


@dataclass(frozen=True, slots=True)
class ServerUrls:
    """Where a running server listens, host:port each."""

    grpc_url: str
    metrics_url: str


# (repository, where its log goes) -> a server that runs while the context is open.
ServerStarter: TypeAlias = Callable[[Path, Path], AbstractContextManager[ServerUrls]]


@contextmanager
def serve_embedded(repository: Path, log_path: Path) -> Iterator[ServerUrls]:
    """The embedded server on free loopback ports, stopped at the end."""
    from draftyard.doors.triton import embedded_server

    with embedded_server(repository, log_path=log_path) as server:
        yield ServerUrls(server.address.grpc_url, server.address.metrics_url)


def verify(
    *,
    repositories: tuple[ServedVariant, ...],
    verify: Verify,
    prompts: Path,
    artifact_directory: Path,
    reuse_evidence: bool,
    show: Show,
    serve: ServerStarter = serve_embedded,
    reproduce: tuple[str, ...] = ("make verify",),
) -> Report:
    """Serve each repository in turn: smoke, measure, judge. Writes `report.json` and all raw records.

    `show` gets one line of progress at a time. The report's `exit_code` is 0 when all gates hold, 1 when one fails,
    3 when evidence is missing. Failure when the pack has too few test prompts or a server does not start.
    """
    measurable = tuple(prompt for prompt in read_prompts(prompts) if prompt.split == "test")
    needed = max(verify.requests_per_tier, *verify.concurrency)
    if len(measurable) < needed:
        raise Failure(
            f"{prompts} has {len(measurable)} test prompts, a tier asks {needed}",
            "add prompts with split test, or lower verify.requests_per_tier or verify.concurrency",
        )
    environment = read_environment()
    variants = tuple(
        _verify_one(variant, verify, measurable, artifact_directory, reuse_evidence, show, serve, environment)
        for variant in repositories
    )
    gates = tuple(gate for variant in variants for gate in judge_gates(verify.gates, variant))
    outcome, code = outcome_of(gates)
    report = Report(
        draftyard_version=__version__,
        created_at=now_utc(),
        outcome=outcome,
        exit_code=int(code),
        headline=report_headline(outcome, variants, gates),
        gates=gates,
        variants=variants,
        environment=environment,
        settings=verify,
        prompt_pack=pack_digest(prompts),
        definitions=DEFINITIONS,
        method=METHOD,
        reproduce=reproduce,
    )
    write_report(report, artifact_directory / "report.json")
    return report


def _verify_one(
    variant: ServedVariant,
    settings: Verify,
    prompts: tuple[Prompt, ...],
    artifact_directory: Path,
    reuse_evidence: bool,
    show: Show,
    serve: ServerStarter,
    environment: Environment,
) -> VariantResult:
    store = EvidenceStore(artifact_directory)
    host = digest({"processor": environment.processor, "count": environment.processor_count})
    load = Load(variant.repository_key, prompts, settings, host)
    busy = environment.load_average_1min > environment.processor_count / 2
    log_path = artifact_directory / "logs" / f"server-{variant.name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)

    def tell(words: str) -> None:
        show(f"{variant.name}: {words}")

    async def observe(urls: ServerUrls) -> tuple[str, SmokeResult, tuple[Cell, ...]]:
        async with Endpoint(urls.grpc_url) as endpoint:
            identity = await endpoint.identity()
            tell("smoke checks")
            found = await smoke(endpoint, urls.metrics_url, variant, prompts)
            if variant.speculator is SpeculatorKind.NONE:
                return f"{identity.name} {identity.version}", found, ()
            cells = await measure_tiers(endpoint, load, store, reuse_evidence, tell)
        return f"{identity.name} {identity.version}", found, cells

    tell("starting the server")
    with serve(variant.repository, log_path) as urls:
        server, found, cells = asyncio.run(observe(urls))
    repeated = repeats(prompts, len(settings.concurrency), load.tier_size(settings.concurrency[-1]))
    return _judge(variant, server, found, cells, repeated, busy and not all(cell.reused for cell in cells))


def _judge(
    variant: ServedVariant, server: str, found: SmokeResult, cells: tuple[Cell, ...], repeated: bool, busy: bool
) -> VariantResult:
    """Turn raw records into results; every result names the digest of the records it came from."""
    tiers = tuple(_tier(variant, cell) for cell in cells)
    everything = tuple(record for cell in cells for record in cell.records)
    lossless = joined([found.losslessness, *(_tier_losslessness(cell.records) for cell in cells)])
    crossover = find_crossover({cell.records[0].concurrency: cell.records for cell in cells})
    cores = max((cell.facts.client_cpu_cores for cell in cells), default=None)
    speculative = [right.timeline for _, right in pairs_of(everything)]
    return VariantResult(
        name=variant.name,
        speculator=variant.speculator.value,
        repository_key=variant.repository_key,
        server=server,
        headline=variant_headline(variant.speculator, tiers, lossless, crossover),
        checks=found.checks,
        losslessness=lossless,
        tiers=tiers,
        domains=judge_domains(everything, variant.max_draft_len, [cell.file.sha256 for cell in cells]),
        acceptance=pooled_acceptance(speculative, variant.max_draft_len) if speculative else None,
        crossover=crossover,
        client_cpu_cores=cores,
        warnings=find_warnings(tiers, cores, repeated and bool(cells), busy),
        evidence=tuple(cell.file for cell in cells),
    )


def _tier(variant: ServedVariant, cell: Cell) -> TierResult:
    return judge_tier(
        concurrency=cell.records[0].concurrency,
        records=cell.records,
        draft_length=variant.max_draft_len,
        evidence=cell.file.sha256,
        measured_at=cell.facts.measured_at,
        reused=cell.reused,
    )


def _tier_losslessness(records: tuple[RequestRecord, ...]) -> Losslessness:
    """The measured pairs say whether the output changed, too, also under load."""
    pairs = [(left.prompt_id, left.timeline, right.timeline) for left, right in pairs_of(records)]
    return losslessness(f"concurrency {records[0].concurrency}", pairs)
