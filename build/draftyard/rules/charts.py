"""Draws charts as SVG values: readable in print, without colour, in light and in dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from draftyard.nouns.chart import Chart, Look, Series
from draftyard.nouns.report import Acceptance, TierResult

WIDTH, HEIGHT = 480, 268
LEFT, RIGHT, TOP, BOTTOM = 46, 98, 18, 42
LABEL_GAP = 15.0


@dataclass(frozen=True, slots=True)
class Frame:
    """Maps data to the plot: loads by their logarithm, values from `floor` to `ceiling`."""

    loads: tuple[int, ...]
    floor: float
    ceiling: float

    def x(self, load: float) -> float:
        """Horizontal position of a load."""
        first, last = math.log2(self.loads[0]), math.log2(self.loads[-1])
        share = 0.5 if last == first else (math.log2(load) - first) / (last - first)
        return round(LEFT + 14 + share * (WIDTH - LEFT - RIGHT - 28), 2)

    def y(self, value: float) -> float:
        """Vertical position of a value."""
        share = (value - self.floor) / (self.ceiling - self.floor)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 2)


def element(tag: str, text: str = "", **attributes: str | float) -> ElementTree.Element:
    """An SVG element; underscores in attribute names become hyphens, a trailing one goes."""
    named = {name.rstrip("_").replace("_", "-"): f"{value}" for name, value in attributes.items()}
    made = ElementTree.Element(tag, named)
    made.text = text or None
    return made


def short(value: float) -> str:
    """Three digits that matter, thousands with a comma, never an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def nice_ticks(low: float, high: float) -> tuple[float, ...]:
    """Round numbers from at most `low` to at least `high`, four to seven of them."""
    span = max(high - low, 1e-9)
    rough = span / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(index * step, 10) for index in range(start, end + 1))


def canvas(label: str) -> ElementTree.Element:
    """An empty drawing that scales with its column and says what it shows."""
    root = element("svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)
    root.append(element("title", label))
    return root


def draw_axes(root: ElementTree.Element, frame: Frame, ticks: Sequence[float], unit: str) -> None:
    """Faint lines at round values, loads below, the unit on top."""
    for tick in ticks:
        y = frame.y(tick)
        root.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        root.append(element("text", f"{tick:,g}", x=LEFT - 8, y=y + 4, class_="tick end"))
    for load in frame.loads:
        root.append(element("text", f"{load}", x=frame.x(load), y=HEIGHT - BOTTOM + 18, class_="tick middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    root.append(element("text", "concurrent requests", x=middle, y=HEIGHT - 6, class_="axis middle"))
    root.append(element("text", unit, x=LEFT - 8, y=10, class_="axis"))


def line_chart(
    title: str, unit: str, loads: tuple[int, ...], series: Sequence[Series], reference: float | None = None
) -> str:
    """Lines over the load with direct labels; `reference` draws a line that all values are read against."""
    values = [
        value for one in series for part in (one.values, one.low, one.high) for value in part if value is not None
    ]
    if not values:
        return ""
    low = 0.0 if reference is None else min(*values, reference)
    ticks = nice_ticks(low, max(*values, reference or 0.0))
    frame = Frame(loads, ticks[0], ticks[-1])
    root = canvas(title)
    draw_axes(root, frame, ticks, unit)
    if reference is not None:
        y = frame.y(reference)
        root.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="reference"))
    for one in series:
        draw_spread(root, frame, one)
    for one in series:
        draw_line(root, frame, one)
    label_lines(root, frame, series)
    return ElementTree.tostring(root, encoding="unicode")


def draw_spread(root: ElementTree.Element, frame: Frame, series: Series) -> None:
    """The band between low and high, or a whisker at each load."""
    known = [
        (frame.x(load), frame.y(low), frame.y(high))
        for load, low, high in zip(frame.loads, series.low, series.high, strict=False)
        if low is not None and high is not None
    ]
    if series.band and len(known) > 1:
        outline = [f"{x},{high}" for x, _, high in known] + [f"{x},{low}" for x, low, _ in reversed(known)]
        root.append(element("polygon", points=" ".join(outline), class_=f"band {series.look.value}"))
    for x, low, high in known:
        shift = -3 if series.look is Look.BASELINE and not series.band else 3 if not series.band else 0
        root.append(element("line", x1=x + shift, x2=x + shift, y1=low, y2=high, class_=f"whisker {series.look.value}"))


def draw_line(root: ElementTree.Element, frame: Frame, series: Series) -> None:
    """The line and its marks: dashed and hollow for the baseline, solid and filled for speculation."""
    known = [
        (frame.x(load), frame.y(value), load, value)
        for load, value in zip(frame.loads, series.values, strict=True)
        if value is not None
    ]
    points = " ".join(f"{x},{y}" for x, y, _, _ in known)
    root.append(element("polyline", points=points, class_=f"line {series.look.value}"))
    for x, y, load, value in known:
        mark = element("circle", cx=x, cy=y, r=4, class_=f"mark {series.look.value}")
        mark.append(element("title", f"{series.name}, {load} concurrent: {short(value)}"))
        root.append(mark)


def label_lines(root: ElementTree.Element, frame: Frame, series: Sequence[Series]) -> None:
    """The name of each line beside its last mark, moved apart where they would touch."""
    ends = []
    for one in series:
        known = [(load, value) for load, value in zip(frame.loads, one.values, strict=True) if value is not None]
        if known:
            ends.append((frame.y(known[-1][1]), one, known[-1][1]))
    last = -math.inf
    for y, one, value in sorted(ends, key=lambda end: end[0]):
        last = max(y, last + 2 * LABEL_GAP)
        x = WIDTH - RIGHT + 4
        root.append(element("text", one.name, x=x, y=last, class_=f"label {one.look.value}"))
        root.append(element("text", short(value), x=x, y=last + LABEL_GAP - 1, class_=f"value {one.look.value}"))


def histogram_chart(title: str, counts: Sequence[int]) -> str:
    """One bar for each number of accepted drafts, its share of all steps on top."""
    total = sum(counts)
    if total == 0:
        return ""
    root = canvas(title)
    width = (WIDTH - 2 * LEFT) / len(counts)
    base = HEIGHT - BOTTOM
    for index, count in enumerate(counts):
        share = count / total
        height = round(share / (max(counts) / total) * (base - TOP - 16), 2)
        x = LEFT + index * width
        bar = element(
            "rect",
            x=round(x + width * 0.14, 2),
            y=base - height,
            width=round(width * 0.72, 2),
            height=height,
            class_="bar",
        )
        bar.append(element("title", f"{index} accepted: {count} steps"))
        root.append(bar)
        middle = round(x + width / 2, 2)
        root.append(element("text", f"{share:.0%}", x=middle, y=base - height - 6, class_="value middle"))
        root.append(element("text", f"{index}", x=middle, y=base + 18, class_="tick middle"))
    root.append(element("line", x1=LEFT, x2=WIDTH - LEFT, y1=base, y2=base, class_="reference"))
    root.append(element("text", "accepted draft tokens in a step", x=WIDTH / 2, y=HEIGHT - 6, class_="axis middle"))
    return ElementTree.tostring(root, encoding="unicode")


def tier_charts(tiers: Sequence[TierResult], acceptance: Acceptance | None) -> tuple[Chart, ...]:
    """The four charts of one variant; a chart without data is left out."""
    if not tiers:
        return ()
    loads = tuple(tier.concurrency for tier in tiers)
    charts = [
        Chart(
            "Speed-up by load",
            "Above the line at 1 speculation pays. The band is the 95 % interval.",
            line_chart("Speed-up by load, with its 95 % interval", "times", loads, (speedup_series(tiers),), 1.0),
        ),
        Chart(
            "Output rate by load",
            "All requests together, output tokens per second.",
            line_chart("Output tokens per second by load", "tokens/s", loads, rate_series(tiers)),
        ),
        Chart(
            "Time to first token by load",
            "Median; whiskers from the fastest to the slowest request.",
            line_chart("Time to first token by load, in milliseconds", "ms", loads, ttft_series(tiers)),
        ),
    ]
    if acceptance is not None:
        title = "Accepted draft tokens per step"
        note = f"{acceptance.steps} decode steps over all loads; each adds one token of the target's own."
        charts.append(Chart(title, note, histogram_chart(title, acceptance.histogram)))
    return tuple(chart for chart in charts if chart.svg)


def speedup_series(tiers: Sequence[TierResult]) -> Series:
    """Speed-up and its interval."""
    spans = [tier.speedup_interval for tier in tiers]
    return Series(
        "speed-up",
        Look.SPECULATIVE,
        tuple(tier.speedup for tier in tiers),
        tuple(None if span is None else span.low for span in spans),
        tuple(None if span is None else span.high for span in spans),
        band=True,
    )


def rate_series(tiers: Sequence[TierResult]) -> tuple[Series, Series]:
    """Total output rate of both arms."""
    return (
        Series("speculative", Look.SPECULATIVE, tuple(tier.speculative.output_tokens_per_s for tier in tiers)),
        Series("baseline", Look.BASELINE, tuple(tier.baseline.output_tokens_per_s for tier in tiers)),
    )


def ttft_series(tiers: Sequence[TierResult]) -> tuple[Series, Series]:
    """Median time to first token of both arms, with the range."""
    made = []
    for look in (Look.SPECULATIVE, Look.BASELINE):
        arms = [tier.speculative if look is Look.SPECULATIVE else tier.baseline for tier in tiers]
        found = [arm.ttft_ms for arm in arms]
        made.append(
            Series(
                look.value,
                look,
                tuple(None if one is None else one.p50 for one in found),
                tuple(None if one is None else one.min for one in found),
                tuple(None if one is None else one.max for one in found),
            )
        )
    return made[0], made[1]
