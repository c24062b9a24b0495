"""Fills the page of a forecast: one self-contained HTML file."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from draftyard.nouns.chart import Chart
from draftyard.nouns.prediction import Estimate, VariantForecast

_TEMPLATES = Path(__file__).parent / "templates"


def estimate_words(value: Estimate | None) -> str:
    """A value and its interval, three digits each; a dash where there is none."""
    if value is None:
        return "–"
    return f"{_short(value.value)} ({_short(value.low)}–{_short(value.high)})"


def write_forecast(recipe: str, forecasts: Sequence[VariantForecast], charts: Sequence[Chart], path: Path) -> None:
    """Render and write beside, then rename; everything but the drawings is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["estimate"] = estimate_words
    drawn = [(chart.title, chart.note, Markup(chart.svg)) for chart in charts]
    page = environment.get_template("forecast.html.j2").render(recipe=recipe, forecasts=forecasts, charts=drawn)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(page, encoding="utf-8")
    beside.replace(path)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
