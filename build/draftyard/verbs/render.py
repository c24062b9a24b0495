"""Turns a report into one page that a person reads and prints, offline."""

from pathlib import Path

from rich.console import Console

from draftyard.doors.report_files import read_report
from draftyard.doors.report_page import print_summary, write_page
from draftyard.nouns.report import Report
from draftyard.rules.charts import tier_charts


def render(report_json: Path, html: Path) -> Path:
    """Read `report.json` and write the page; returns its path. Failure when the report cannot be read."""
    report = read_report(report_json)
    charts = tuple(tier_charts(variant.tiers, variant.acceptance) for variant in report.variants)
    write_page(report, charts, html)
    return html


def summarise(report: Report) -> None:
    """Say on stderr, for people, what was found."""
    print_summary(report, Console(stderr=True))
