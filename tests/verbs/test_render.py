"""The page: one file, nothing fetched, every text escaped, the figures of the report in it."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from draftyard.doors.report_files import read_report, write_report
from draftyard.doors.report_page import print_summary
from draftyard.nouns.errors import Failure
from draftyard.nouns.report import Report
from draftyard.rules.gates import report_headline
from draftyard.verbs.render import render

GOLDEN = Path(__file__).parent.parent / "golden" / "report" / "report.json"


@pytest.fixture(scope="module")
def report() -> Report:
    return read_report(GOLDEN)


def test_the_page_stands_alone(tmp_path: Path) -> None:
    page = render(GOLDEN, tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 6_000_000
    assert not re.findall(r"(?:src|href)=\"(?!#)|url\(|@import|<script|<link", page)
    assert page.count("<svg") == 8
    assert page.count("</section>") == page.count("<section") == 3
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_the_page_says_what_the_report_says(report: Report, tmp_path: Path) -> None:
    page = render(GOLDEN, tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<h1>{report.headline}</h1>" in page
    for variant in report.variants:
        for tier in variant.tiers:
            assert tier.evidence in page
            assert f"<td>{tier.speedup:.2f}</td>" in page
        for check in variant.checks:
            assert check.name in page
    for name in report.definitions:
        assert f"<dt>{name}</dt>" in page


def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    first = render(GOLDEN, tmp_path / "1.html").read_bytes()
    assert render(GOLDEN, tmp_path / "2.html").read_bytes() == first


def test_texts_of_models_are_escaped(report: Report, tmp_path: Path) -> None:
    variant = report.variants[0]
    check = variant.checks[0].model_copy(update={"evidence": "<script>alert(1)</script>"})
    hostile = report.model_copy(
        update={"variants": (variant.model_copy(update={"checks": (check,)}), *report.variants[1:])}
    )
    write_report(hostile, tmp_path / "report.json")
    page = render(tmp_path / "report.json", tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_terminal_gets_the_verdict_first(report: Report) -> None:
    console = Console(file=io.StringIO(), width=90)
    print_summary(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith(report.headline[:60])
    assert "✗ draft_target lossless" in text


def test_a_variant_that_fails_its_gates_is_not_recommended(report: Report) -> None:
    assert "The draft model" not in report.headline
    assert report_headline(report.outcome, report.variants, report.gates) == report.headline


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no report at"):
        render(tmp_path / "report.json", tmp_path / "report.html")
    (tmp_path / "report.json").write_text('{"schema_version": 1}')
    with pytest.raises(Failure, match="is no report"):
        render(tmp_path / "report.json", tmp_path / "report.html")
