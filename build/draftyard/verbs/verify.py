"""Proves of served repositories that speculation changes nothing and where it pays; ends in a report."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from draftyard import __version__
from draftyard.doors.measuring_host import now_utc, read_environment
from draftyard.doors.prompts import pack_digest, read_prompts
from draftyard.doors.report_files import EvidenceStore, write_report
from draftyard.doors.verification_files import read_golden, write_golden, write_junit, write_policy_file
from draftyard.nouns.digest import digest
from draftyard.nouns.errors import Failure
from draftyard.nouns.golden_acceptance import GoldenAcceptance, GoldenRow
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.load import Profile
from draftyard.nouns.policy import Policy
from draftyard.nouns.prompt import Prompt
from draftyard.nouns.report import Environment, GateResult, Report, VariantResult
from draftyard.nouns.verification import Verify
from draftyard.rules.acceptance_alarms import golden_differences, golden_missing, golden_rows
from draftyard.rules.definitions import DEFINITIONS, METHOD
from draftyard.rules.gates import golden_gate, judge_gates, outcome_of, report_headline
from draftyard.rules.junit import junit_xml
from draftyard.rules.prompt_formats import parse_prompt
from draftyard.verbs.perf import Show
from draftyard.verbs.smoke import ServedVariant
from draftyard.verbs.variant_verification import Job, Observed, judge, observe, speculative_by_domain

__all__ = ["Effort", "ServedVariant", "ServerStarter", "ServerUrls", "running_server", "serve_embedded", "verify"]


@dataclass(frozen=True, slots=True)
class ServerUrls:
    """Where a running server listens, host:port each; without a metrics address what needs it is skipped.

    `live_policy` is a file that the server follows while it runs, if there is one.
    """

    grpc_url: str
    metrics_url: str
    live_policy: Path | None = None


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is looked at: a profile, minutes for everything (None: as long as it takes), golden values to keep."""

    profile: Profile = Profile.PERF
    minutes: float | None = None
    golden: Path | None = None


# (repository, where its log goes) -> a server that runs while the context is open.
ServerStarter: TypeAlias = Callable[[Path, Path], AbstractContextManager[ServerUrls]]


@contextmanager
def serve_embedded(repository: Path, log_path: Path) -> Iterator[ServerUrls]:
    """The embedded server on free loopback ports, stopped at the end."""
    from draftyard.doors.triton import POLICY_NAME, embedded_server

    # A repository that carries a policy is served with that one, any other with one that can still be written.
    policy = None if (repository / POLICY_NAME).exists() else log_path.with_suffix(".policy.json")
    if policy is not None:
        write_policy_file(Policy(version=1, steps=()), None, policy)
    with embedded_server(repository, log_path=log_path, policy=policy) as server:
        yield ServerUrls(server.address.grpc_url, server.address.metrics_url, policy)


def running_server(urls: ServerUrls) -> ServerStarter:
    """A server that somebody else started, and will stop."""

    @contextmanager
    def serve(repository: Path, log_path: Path) -> Iterator[ServerUrls]:
        yield urls

    return serve


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
    effort: Effort | None = None,
) -> Report:
    """Serve each repository in turn: smoke, measure, judge. Writes the report, JUnit XML, policies and raw records.

    `show` gets one line of progress at a time. The report's `exit_code` is 0 when all gates hold, 1 when one fails,
    3 when evidence is missing. Failure when the pack has too few test prompts or a server does not start.
    """
    effort = Effort() if effort is None else effort
    golden = None if effort.golden is None else read_golden(effort.golden)
    measurable = _test_prompts(prompts, verify)
    environment = read_environment()
    jobs = _Jobs(verify, effort, measurable, artifact_directory, reuse_evidence, show, serve, environment)
    found = tuple(jobs.run(variant, left) for variant, left in _with_turns(repositories))
    variants = tuple(result for result, _ in found)
    rows = {result.name: golden for result, golden in found}
    gates = tuple(gate for result in variants for gate in _gates(verify, effort, result, rows[result.name], golden))
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
        profile=effort.profile,
    )
    _write(report, artifact_directory, tuple(row for listed in rows.values() for row in listed))
    return report


def _test_prompts(path: Path, settings: Verify) -> tuple[Prompt, ...]:
    measurable = tuple(prompt for prompt in read_prompts(path, parse_prompt) if prompt.split == "test")
    needed = max(settings.requests_per_tier, *settings.concurrency)
    if len(measurable) < needed:
        raise Failure(
            f"{path} has {len(measurable)} test prompts, a tier asks {needed}",
            "add prompts with split test, or lower verify.requests_per_tier or verify.concurrency",
        )
    return measurable


def _with_turns(repositories: tuple[ServedVariant, ...]) -> Iterator[tuple[ServedVariant, int]]:
    """Each variant, and how many that speculate are left: these share the time that is left."""
    left = sum(variant.speculator is not SpeculatorKind.NONE for variant in repositories)
    for variant in repositories:
        yield variant, max(1, left)
        left -= variant.speculator is not SpeculatorKind.NONE


def _gates(
    settings: Verify,
    effort: Effort,
    result: VariantResult,
    rows: tuple[GoldenRow, ...],
    golden: GoldenAcceptance | None,
) -> tuple[GateResult, ...]:
    gates = judge_gates(settings.gates, result, smoke_only=effort.profile is Profile.SMOKE)
    if golden is None or result.speculator == SpeculatorKind.NONE:
        return gates
    return (*gates, golden_gate(result.name, golden_differences(golden, rows), golden_missing(golden, rows)))


def _write(report: Report, directory: Path, rows: tuple[GoldenRow, ...]) -> None:
    path = directory / "report.json"
    write_report(report, path)
    write_junit(junit_xml(report), directory / "junit.xml")
    if rows:
        write_golden(GoldenAcceptance(version=1, rows=rows), directory / "acceptance.json")
    for variant in report.variants:
        if variant.policy is not None and variant.policy.source != "repository":
            write_policy_file(variant.policy.policy, path, directory / variant.policy.path)


@dataclass(frozen=True, slots=True)
class _Jobs:
    """What all variants of one run have in common."""

    settings: Verify
    effort: Effort
    prompts: tuple[Prompt, ...]
    directory: Path
    reuse: bool
    show: Show
    serve: ServerStarter
    environment: Environment
    started_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "started_s", time.monotonic())

    def run(self, variant: ServedVariant, sharing: int) -> tuple[VariantResult, tuple[GoldenRow, ...]]:
        """Serve one variant, look at it, judge it; also gives its rows of a golden file."""
        environment = self.environment
        host = digest({"processor": environment.processor, "count": environment.processor_count})
        busy = environment.load_average_1min > environment.processor_count / 2
        log_path = self.directory / "logs" / f"server-{variant.name}.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)

        def tell(words: str) -> None:
            self.show(f"{variant.name}: {words}")

        tell("starting the server")
        with self.serve(variant.repository, log_path) as urls:
            job = Job(
                variant=variant,
                settings=self.settings,
                profile=self.effort.profile,
                prompts=self.prompts,
                host=host,
                metrics_url=urls.metrics_url,
                deadline_s=self._deadline_s(sharing),
                live_policy=urls.live_policy,
            )
            seen = asyncio.run(observe(job, urls.grpc_url, EvidenceStore(self.directory), self.reuse, tell))
        fresh = not all(cell.reused for cell in seen.cells)
        return judge(job, seen, busy and fresh, f"policies/{variant.name}.json"), _golden_rows(variant, seen)

    def _deadline_s(self, sharing: int) -> float | None:
        if self.effort.minutes is None:
            return None
        now = time.monotonic()
        return now + max(0.0, self.started_s + 60.0 * self.effort.minutes - now) / sharing


def _golden_rows(variant: ServedVariant, seen: Observed) -> tuple[GoldenRow, ...]:
    answers = speculative_by_domain(seen.tiers)
    if not answers:
        return ()
    return golden_rows(answers, variant.target, variant.speculator.value, variant.precision, variant.longest_run)
