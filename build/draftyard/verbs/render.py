"""Turns a report into one page that a person reads and prints, offline."""

from pathlib import Path

from draftyard.doors.report_files import read_report
from draftyard.doors.report_page import write_page
from draftyard.rules.charts import tier_charts


def render(report_json: Path, html: Path) -> Path:
    """Read `report.json` and write the page; returns its path. Failure when the report cannot be read."""
    report = read_report(report_json)
    charts = tuple(tier_charts(variant.tiers, variant.acceptance) for variant in report.variants)
    write_page(report, charts, html)
    return html
