"""The whole verification against a scripted server: figures, gates, evidence that is kept and used again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fakes.triton_entry.script import Fault
from tests.fakes.triton_entry.server import Pace, scripted_entry

from draftyard.doors.report_files import read_report
from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.load import Profile
from draftyard.nouns.report import Advice, Report
from draftyard.nouns.report_part import Verdict
from draftyard.nouns.verification import Gates, Verify
from draftyard.verbs import variant_verification
from draftyard.verbs.lossless import LosslessPlan
from draftyard.verbs.verify import ServedVariant, ServerUrls, verify

QUICK = Pace(0.0, 0.001, 0.001)
SLOW = Pace(0.001, 0.004, 0.004)


@pytest.fixture(autouse=True)
def few_compared_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter answers than people want, so that each test is quick."""
    plan = LosslessPlan(each_domain=0, max_tokens=6)
    monkeypatch.setattr(variant_verification, "LOSSLESS_PLANS", dict.fromkeys(Profile, plan))


def write_pack(path: Path, prompts: int = 16) -> Path:
    lines = []
    for index in range(prompts):
        domain = ("chat", "code", "edit", "math")[index % 4]
        message = {"role": "user", "content": f"Question {index} about {domain}"}
        lines.append({"id": f"p{index}", "domain": domain, "split": "test", "length": "short", "messages": [message]})
    lines.append({**lines[0], "id": "never", "split": "train"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def variant(kind: SpeculatorKind = SpeculatorKind.NGRAM) -> ServedVariant:
    return ServedVariant(kind.value, kind, kind.value * 8, Path("repository"), 256, 1024, 4)


def settings(**fields: object) -> Verify:
    wanted = {"concurrency": (1, 2), "requests_per_tier": 8, "max_tokens": 11, "prompts": "pack.jsonl", **fields}
    return Verify.model_validate(wanted)


def run(
    tmp_path: Path,
    wanted: Verify | None = None,
    fault: Fault = Fault.NONE,
    variants: tuple[ServedVariant, ...] = (),
    reuse: bool = True,
    lines: list[str] | None = None,
    pace: Pace = QUICK,
) -> Report:
    @contextmanager
    def serve(repository: Path, log_path: Path) -> Iterator[ServerUrls]:
        with scripted_entry(fault, pace) as server:
            yield ServerUrls(server.grpc_url, server.metrics_url)

    return verify(
        repositories=variants or (variant(),),
        verify=wanted or settings(),
        prompts=write_pack(tmp_path / "pack.jsonl"),
        artifact_directory=tmp_path / "out",
        reuse_evidence=reuse,
        show=(lines if lines is not None else []).append,
        serve=serve,
    )


def test_what_the_script_does_is_what_the_report_says(tmp_path: Path) -> None:
    report = run(tmp_path, pace=SLOW)
    assert (report.outcome, report.exit_code) == ("passed", 0)
    found = report.variants[0]
    assert [tier.concurrency for tier in found.tiers] == [1, 2]
    tier = found.tiers[0]
    assert tier.acceptance.histogram == (8, 8, 8, 8, 0)
    assert tier.acceptance.acceptance_length == 2.5
    assert tier.acceptance.per_position == (0.75, 2 / 3, 0.5, 0.0)
    assert tier.baseline.output_tokens == tier.speculative.output_tokens == 8 * 11
    assert tier.baseline.tokens_per_chunk == 1.0
    assert tier.speculative.tokens_per_chunk == pytest.approx(11 / 5)
    assert tier.baseline.tpot_ms is not None
    assert 4.0 <= tier.baseline.tpot_ms.mean < 10.0
    assert tier.speedup is not None
    assert 1.5 < tier.speedup < 3.0
    assert tier.advice is Advice.SPECULATE
    assert (found.losslessness.compared, found.losslessness.identical) == (5 + 3 * 8, 29)
    assert (found.losslessness.floor_compared, found.losslessness.floor_identical) == (16, 16)
    assert found.crossover is not None
    assert found.crossover.concurrency is None
    assert "none within the measured range" in found.crossover.text
    assert {domain.domain for domain in found.domains} == {"chat", "code", "edit", "math"}
    assert read_report(tmp_path / "out" / "report.json") == report


def test_every_number_leads_to_its_raw_file(tmp_path: Path) -> None:
    report = run(tmp_path)
    files = {file.sha256: file for file in report.variants[0].evidence}
    for tier in report.variants[0].tiers:
        path = tmp_path / "out" / files[tier.evidence].path
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(records) == tier.baseline.requests + tier.speculative.requests
        assert sum(record["arm"] == "baseline" for record in records) == 8
        assert {record["prompt_id"] for record in records if record["arm"] == "baseline"} == {
            record["prompt_id"] for record in records if record["arm"] == "speculative"
        }
        assert not any(record["prompt_id"] == "never" for record in records)


def test_a_second_run_uses_the_evidence_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    lines: list[str] = []
    second = run(tmp_path, lines=lines)
    assert sum("have, measured" in line for line in lines) == 2
    assert [tier.reused for tier in second.variants[0].tiers] == [True, True]
    assert [tier.speedup for tier in second.variants[0].tiers] == [tier.speedup for tier in first.variants[0].tiers]
    third = run(tmp_path, reuse=False)
    assert [tier.reused for tier in third.variants[0].tiers] == [False, False]


def test_changed_bytes_are_no_evidence(tmp_path: Path) -> None:
    report = run(tmp_path)
    path = tmp_path / "out" / report.variants[0].evidence[0].path
    path.write_text(path.read_text().replace('"tokens":1,', '"tokens":2,', 1))
    again = run(tmp_path)
    assert [tier.reused for tier in again.variants[0].tiers] == [False, True]


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    run(tmp_path, settings(concurrency=(1,)))
    lines: list[str] = []
    run(tmp_path, settings(concurrency=(1, 2)), lines=lines)
    assert sum("have, measured" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("fault", "gates", "failing", "code"),
    [
        (Fault.WRONG_TOKEN, Gates(), {"smoke", "lossless"}, 1),
        (Fault.NEVER_DRAFTS, Gates(), {"smoke"}, 1),
        (Fault.NONE, Gates(min_speedup=9.0), {"min_speedup"}, 1),
        (Fault.NONE, Gates(min_speedup=1.2), set(), 0),
    ],
)
def test_gates(tmp_path: Path, fault: Fault, gates: Gates, failing: set[str], code: int) -> None:
    report = run(tmp_path, settings(gates=gates, concurrency=(1,)), fault, pace=SLOW if gates.min_speedup else QUICK)
    assert {gate.gate for gate in report.gates if gate.verdict is Verdict.FAIL} == failing
    assert report.exit_code == code


def test_missing_evidence_is_not_a_pass(tmp_path: Path) -> None:
    report = run(tmp_path, settings(gates=Gates(min_speedup=1.1), concurrency=(2,)))
    assert (report.outcome, report.exit_code) == ("incomplete", 3)


def test_failures_are_counted_by_kind_and_gated(tmp_path: Path) -> None:
    report = run(tmp_path, settings(concurrency=(1,)), Fault.NO_END_MARK)
    tier = report.variants[0].tiers[0]
    assert tier.baseline.failures == {"truncated": 8}
    assert tier.speedup is None
    assert report.exit_code == 1
    assert "max_error_rate" in {gate.gate for gate in report.gates if gate.verdict is Verdict.FAIL}


def test_plain_decoding_is_checked_and_not_measured(tmp_path: Path) -> None:
    report = run(tmp_path, fault=Fault.NEVER_DRAFTS, variants=(variant(SpeculatorKind.NONE),))
    assert report.variants[0].tiers == ()
    assert report.exit_code == 0


def test_a_pack_without_enough_test_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="16 test prompts, a tier asks 32"):
        run(tmp_path, settings(requests_per_tier=32))
