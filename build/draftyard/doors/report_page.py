"""Fills the page template: one self-contained HTML file, and the summary for a terminal."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from draftyard.doors.report_files import write_whole
from draftyard.nouns.chart import Chart
from draftyard.nouns.report import Report, Summary, TierResult
from draftyard.nouns.report_part import Interval, Verdict

TEMPLATES = Path(__file__).parent / "templates"
NOTHING = "–"
MARKS = {Verdict.PASS: "✓", Verdict.FAIL: "✗", Verdict.SKIPPED: "○"}
STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.SKIPPED: "dim"}


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share, or a dash."""
    return NOTHING if value is None else f"{value:.0%}"


def span(value: Interval | None) -> str:
    """An interval, or a dash."""
    return NOTHING if value is None else f"{value.low:.2f} to {value.high:.2f}"


def median(value: Summary | None, digits: int = 1) -> str:
    """The p50 of a distribution, or a dash."""
    return NOTHING if value is None else f"{value.p50:,.{digits}f}"


def upper(value: Summary | None, digits: int = 1) -> str:
    """The p95 of a distribution; `n/a` where n is too small for one."""
    if value is None:
        return NOTHING
    return "n/a" if value.p95 is None else f"{value.p95:,.{digits}f}"


def write_page(report: Report, charts: Sequence[Sequence[Chart]], path: Path) -> None:
    """Render the report; `charts` holds those of each variant, in order. Everything but the drawings is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, span=span, median=median, upper=upper)
    drawn = [[(chart.title, chart.note, Markup(chart.svg)) for chart in each] for each in charts]
    page = environment.get_template("report.html.j2").render(report=report, charts=drawn, marks=MARKS)
    write_whole(path, page.encode("utf-8"))


def print_summary(report: Report, console: Console) -> None:
    """What was found, for a terminal; pass a console on stderr."""
    parts: list[RenderableType] = [Text(report.headline, style="bold"), Text()]
    for variant in report.variants:
        parts.append(Text(f"{variant.name}: {variant.headline}"))
        if variant.tiers:
            parts.append(_tier_table(variant.tiers))
        parts += [Text(f"  crossing: {one.text}") for one in variant.crossings if one.domain == "all"]
        if variant.policy is not None:
            parts.append(Text(f"  policy: {variant.policy.words} (applied by the {variant.policy.source})"))
        parts += [Text(f"  note: {warning}", style="yellow") for warning in variant.warnings]
        parts.append(Text())
    for gate in report.gates:
        line = f"{MARKS[gate.verdict]} {gate.variant} {gate.gate}: {gate.measured} ({gate.required})"
        parts.append(Text(f"{line} {gate.reason}".rstrip(), style=STYLES[gate.verdict]))
    console.print(Group(*parts))


def _tier_table(tiers: Sequence[TierResult]) -> Table:
    table = Table(box=None, pad_edge=True, header_style="dim")
    for name in (
        "load",
        "plain tok/s",
        "spec. tok/s",
        "speed-up",
        "95 % interval",
        "length",
        "advice",
    ):
        table.add_column(name, justify="left" if name == "advice" else "right", no_wrap=True)
    for tier in tiers:
        table.add_row(
            str(tier.concurrency),
            number(tier.baseline.output_tokens_per_s, 1),
            number(tier.speculative.output_tokens_per_s, 1),
            number(tier.speedup),
            span(tier.speedup_interval),
            number(tier.acceptance.acceptance_length),
            tier.advice.value,
        )
    return table
