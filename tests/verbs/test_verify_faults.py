"""Planted faults are caught by a whole verification, and a full one ends in a policy that was measured."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.triton_entry.script import Fault
from tests.fakes.triton_entry.server import Pace, scripted_entry
from tests.verbs.test_verify import QUICK, settings, variant, write_pack

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.load import Profile
from draftyard.nouns.policy import Policy
from draftyard.nouns.report import Advice, Report
from draftyard.nouns.report_part import Verdict
from draftyard.nouns.verification import Gates, Verify
from draftyard.rules import next_load
from draftyard.verbs import variant_verification
from draftyard.verbs.lossless import LosslessPlan
from draftyard.verbs.verify import Effort, ServerUrls, running_server, verify

SHORT = LosslessPlan(each_domain=0, max_tokens=4)


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer tokens than people want, so that each test is quick."""
    use_plan(monkeypatch, LosslessPlan(each_domain=0, max_tokens=24))


def use_plan(monkeypatch: pytest.MonkeyPatch, plan: LosslessPlan) -> None:
    monkeypatch.setattr(variant_verification, "LOSSLESS_PLANS", dict.fromkeys(Profile, plan))


def run(
    tmp_path: Path,
    fault: Fault = Fault.NONE,
    wanted: Verify | None = None,
    effort: Effort | None = None,
    pace: Pace = QUICK,
    follows_policy: bool = False,
    lines: list[str] | None = None,
) -> Report:
    policy = tmp_path / "live.json"

    @contextmanager
    def serve(repository: Path, log_path: Path) -> Iterator[ServerUrls]:
        if follows_policy:
            policy.write_text(Policy(version=1, steps=()).model_dump_json())
        with scripted_entry(fault, pace, policy=policy if follows_policy else None) as server:
            yield ServerUrls(server.grpc_url, server.metrics_url, policy if follows_policy else None)

    return verify(
        repositories=(variant(),),
        verify=wanted or settings(concurrency=(1,)),
        prompts=write_pack(tmp_path / "pack.jsonl"),
        artifact_directory=tmp_path / "out",
        reuse_evidence=True,
        show=(lines if lines is not None else []).append,
        serve=serve,
        effort=effort,
    )


def failing(report: Report) -> set[str]:
    return {gate.gate for gate in report.gates if gate.verdict is Verdict.FAIL}


def test_one_token_in_two_hundred(tmp_path: Path) -> None:
    report = run(tmp_path, Fault.WRONG_TOKEN)
    assert report.exit_code == 1
    assert "lossless" in failing(report)
    found = report.variants[0].losslessness
    assert found.floor_identical == found.floor_compared > 0
    assert 0 < len(found.divergences) < found.compared


def test_a_speculator_that_never_accepts(tmp_path: Path) -> None:
    report = run(
        tmp_path, Fault.NEVER_ACCEPTS, settings(concurrency=(1,), gates=Gates(min_acceptance_length={"all": 1.5}))
    )
    assert any("exactly 1" in words for words in report.variants[0].alarms)
    assert failing(report) == {"min_acceptance_length: all"}
    assert report.variants[0].tiers[0].advice is not Advice.SPECULATE
    assert "few drafts are accepted" in report.variants[0].tiers[0].reason


def test_a_server_that_counts_rejected_tokens(tmp_path: Path) -> None:
    report = run(tmp_path, Fault.COUNTS_REJECTED)
    assert any("counter is wrong" in words for words in report.variants[0].alarms)
    assert any("contradict" in words for words in report.variants[0].warnings)


def test_state_kept_between_requests(tmp_path: Path) -> None:
    report = run(tmp_path, Fault.KEEPS_STATE)
    assert "lossless" in failing(report)
    assert any("kept between requests" in note for note in report.variants[0].losslessness.notes)


def test_drawn_answers_of_another_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_plan(monkeypatch, LosslessPlan(each_domain=0, max_tokens=4, draws=40))
    (tmp_path / "honest").mkdir()
    effort = Effort(Profile.FULL)
    report = run(tmp_path, Fault.DRAWS_OTHERWISE, effort=effort)
    assert "lossless" in failing(report)
    assert {test.verdict for test in report.variants[0].losslessness.sampled} == {Verdict.FAIL}
    honest = run(tmp_path / "honest", effort=effort)
    assert {test.verdict for test in honest.variants[0].losslessness.sampled} == {Verdict.PASS}


def test_acceptance_that_falls_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_plan(monkeypatch, SHORT)
    report = run(tmp_path, Fault.ACCEPTS_LESS_TOGETHER, settings(concurrency=(1, 4), requests_per_tier=16))
    assert any("acceptance length falls" in words for words in report.variants[0].alarms)


def test_a_full_verification_ends_in_a_policy_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A speculative step costs 2.5 plain ones more for each other request: it pays alone, and not in company.

    The tolerance is wide because requests of a turn that begin before the others still speculate.
    """
    use_plan(monkeypatch, SHORT)
    pace = Pace(0.001, 0.004, 0.004, per_request_s=0.010)
    gates = Gates(policy=True, policy_tolerance=0.5)
    wanted = settings(concurrency=(1, 4), max_tokens=16, gates=gates)
    report = run(tmp_path, wanted=wanted, effort=Effort(Profile.FULL), pace=pace, follows_policy=True)
    found = report.variants[0]
    assert found.tiers[0].advice is Advice.SPECULATE
    assert found.tiers[-1].advice is Advice.DO_NOT_SPECULATE
    overall = next(one for one in found.crossings if one.domain == "all")
    assert overall.at is not None
    assert 1 < overall.at < 4
    assert found.policy is not None
    assert found.policy.source == "server"
    threshold = found.policy.policy.steps[0].running
    assert {threshold - 1, threshold} <= {tier.concurrency for tier in found.proof_tiers}
    assert all(tier.policy is not None for tier in found.proof_tiers)
    assert found.policy.proof is not None
    assert found.policy.proof.failing == ()
    assert found.cost_law is not None
    assert found.cost_law.lengths == (2, 4)
    assert found.cost_law.costs[1] == found.tiers[0].step_cost
    written = Policy.model_validate_json((tmp_path / "out" / found.policy.path).read_text())
    assert written.steps == found.policy.policy.steps
    assert written.evidence is not None


def test_a_policy_that_is_not_followed_fails_its_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has a policy file and never looks at it: the arm speculates where it should not."""
    use_plan(monkeypatch, SHORT)
    pace = Pace(0.001, 0.003, 0.003, per_request_s=0.012)

    @contextmanager
    def serve(repository: Path, log_path: Path) -> Iterator[ServerUrls]:
        with scripted_entry(pace=pace) as server:
            yield ServerUrls(server.grpc_url, server.metrics_url, tmp_path / "ignored.json")

    report = verify(
        repositories=(variant(),),
        verify=settings(concurrency=(1, 4), max_tokens=16, gates=Gates(policy=True, policy_tolerance=0.1)),
        prompts=write_pack(tmp_path / "pack.jsonl"),
        artifact_directory=tmp_path / "out",
        reuse_evidence=True,
        show=[].append,
        serve=serve,
        effort=Effort(Profile.FULL),
    )
    assert "policy" in failing(report)
    assert report.variants[0].policy is not None
    assert report.variants[0].policy.proof is not None
    assert "4" in report.variants[0].policy.proof.failing


def test_junit_shows_each_check_and_gate(tmp_path: Path) -> None:
    report = run(tmp_path, Fault.NEVER_DRAFTS, effort=Effort(Profile.SMOKE))
    root = ElementTree.fromstring((tmp_path / "out" / "junit.xml").read_text())
    suite = root[0]
    assert suite.get("tests") == str(len(report.variants[0].checks) + len(report.gates))
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["the engine drafts", "smoke"]
    assert suite.get("failures") == "2"


def test_the_smoke_profile_measures_nothing_and_passes(tmp_path: Path) -> None:
    report = run(tmp_path, effort=Effort(Profile.SMOKE))
    assert (report.outcome, report.exit_code, report.variants[0].tiers) == ("passed", 0, ())


def test_a_time_to_keep_leaves_loads_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_plan(monkeypatch, SHORT)
    lines: list[str] = []
    slow = Pace(0.001, 0.006, 0.006)
    wanted = settings(concurrency=(1, 2, 4, 8), max_tokens=11)
    report = run(tmp_path, wanted=wanted, effort=Effort(Profile.PERF, minutes=0.01), pace=slow, lines=lines)
    assert [tier.concurrency for tier in report.variants[0].tiers] == [1]
    assert any("the time is over" in line for line in lines)


def test_the_golden_file_of_one_run_is_kept_by_the_next(tmp_path: Path) -> None:
    run(tmp_path)
    golden = tmp_path / "out" / "acceptance.json"
    kept = run(tmp_path, effort=Effort(golden=golden))
    assert [gate.verdict for gate in kept.gates if gate.gate == "golden acceptance"] == [Verdict.PASS]
    released = json.loads(golden.read_text())
    for row in released["rows"]:
        row.update(value=3.53, low=3.4, high=3.6)
    golden.write_text(json.dumps(released))
    differs = run(tmp_path, effort=Effort(golden=golden))
    assert failing(differs) == {"golden acceptance"}


def test_a_server_that_runs_already_is_measured_and_left_running(tmp_path: Path) -> None:
    with scripted_entry(pace=QUICK) as server:
        report = verify(
            repositories=(replace(variant(SpeculatorKind.NGRAM), repository=Path()),),
            verify=settings(concurrency=(1,), request_rate=(40.0,)),
            prompts=write_pack(tmp_path / "pack.jsonl"),
            artifact_directory=tmp_path / "out",
            reuse_evidence=False,
            show=[].append,
            serve=running_server(ServerUrls(server.grpc_url, server.metrics_url)),
        )
        assert server.counters.in_flight == 0
    assert report.exit_code == 0
    assert [tier.request_rate for tier in report.variants[0].rate_tiers] == [40.0]


def test_time_that_is_left_goes_to_what_is_not_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arms alike: the interval holds 1, and more turns are asked of the same load."""
    use_plan(monkeypatch, SHORT)
    effort = Effort(Profile.PERF, minutes=1.0)
    monkeypatch.setattr(next_load, "MOST_ROUNDS", 3)
    report = run(tmp_path, Fault.NEVER_DRAFTS, settings(concurrency=(1,)), effort)
    tier = report.variants[0].tiers[0]
    assert len(tier.more_evidence) <= 2
    assert tier.turns == 4 * (1 + len(tier.more_evidence))
    assert tier.baseline.requests == tier.pairs == 8 * (1 + len(tier.more_evidence))
    files = {file.sha256 for file in report.variants[0].evidence}
    assert files == {one for tier in report.variants[0].tiers for one in (tier.evidence, *tier.more_evidence)}
