"""Pictures of forecasts: the roofline with the variants on it, memory bars, speed-up with its predicted crossing."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias
from xml.etree import ElementTree

from draftyard.nouns.chart import Chart, Look, Series
from draftyard.nouns.prediction import Fit, MemoryForecast, VariantForecast
from draftyard.rules.charts import (
    BOTTOM,
    HEIGHT,
    LABEL_GAP,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Frame,
    canvas,
    draw_axes,
    draw_line,
    draw_spread,
    element,
    label_lines,
    nice_ticks,
    short,
)
from draftyard.rules.predict.device_memory import PARTS

# From a point of the roofline to the drawing.
_Placed: TypeAlias = Callable[[float, float], tuple[float, float]]
_BAR = 17.0
_BAR_GAP = 31.0
# One letter a part, so that bars are read without colour; the same letters stand in the list below the bars.
_LETTERS = "ABCDEFGHJK"


def forecast_charts(forecasts: Sequence[VariantForecast]) -> tuple[Chart, ...]:
    """The roofline and memory of all variants, then the speed-up of each one that speculates."""
    charts = [
        Chart("Roofline", _roofline_note(forecasts), roofline_chart(forecasts)),
        Chart("Memory of one device", memory_note(forecasts), memory_chart(forecasts)),
    ]
    charts += [
        Chart(f"Speed-up by load, {one.variant}", _speedup_note(one), speedup_chart(one))
        for one in forecasts
        if one.acceptance is not None
    ]
    return tuple(chart for chart in charts if chart.svg)


def roofline_chart(forecasts: Sequence[VariantForecast]) -> str:
    """Achieved FLOP/s of plain decoding over FLOPs per byte, both logarithmic, below the roofs of each device."""
    if not forecasts:
        return ""
    points = [
        (load.intensity, achieved_flops(one, load_index))
        for one in forecasts
        for load_index, load in enumerate(one.loads)
    ]
    ridges = [one.ridge for one in forecasts]
    peaks = [one.peak_flops for one in forecasts]
    spans = _decades([x for x, _ in points] + [2 * ridge for ridge in ridges])
    heights = _decades([y for _, y in points] + peaks)
    root = canvas("Roofline: achieved FLOP/s over FLOPs per byte")

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - spans[0]) / (spans[1] - spans[0])
        up = (math.log10(y) - heights[0]) / (heights[1] - heights[0])
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 2),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 2),
        )

    _log_axes(root, place, spans, heights)
    _roofs(root, forecasts, place, (10.0 ** spans[0], 10.0 ** spans[1], 10.0 ** heights[0]))
    for number, one in enumerate(forecasts, start=1):
        _roof_points(root, one, place, number)
    return ElementTree.tostring(root, encoding="unicode")


def achieved_flops(one: VariantForecast, index: int) -> float:
    """FLOP/s of a plain step at the load with this index: FLOPs per byte x bytes a second."""
    load = one.loads[index]
    return load.intensity * load.limit_share * one.bandwidth_bytes_per_s


def memory_chart(forecasts: Sequence[VariantForecast]) -> str:
    """A bar for each variant, cut into its parts, and a mark at what the device reports as usable."""
    if not forecasts:
        return ""
    most = max(max(one.memory.total.high, one.memory.usable_bytes or 0.0) for one in forecasts)
    ticks = nice_ticks(0.0, most / 1e9)
    height = TOP + 26 + len(forecasts) * (_BAR + _BAR_GAP) + 30
    root = element("svg", viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label="Memory of one device, by part")
    root.append(element("title", "Memory of one device, by part"))
    scale = (WIDTH - 2 * 14) / ticks[-1] / 1e9
    base = height - 30
    for tick in ticks:
        x = round(14 + tick * 1e9 * scale, 2)
        root.append(element("line", x1=x, x2=x, y1=TOP, y2=base, class_="grid"))
        root.append(element("text", f"{tick:g}", x=x, y=base + 16, class_="tick middle"))
    root.append(element("text", "GB", x=WIDTH - 14, y=TOP - 6, class_="axis end"))
    for index, one in enumerate(forecasts):
        _memory_bar(root, one, TOP + 22 + index * (_BAR + _BAR_GAP), scale)
    return ElementTree.tostring(root, encoding="unicode")


def speedup_chart(one: VariantForecast) -> str:
    """Predicted speed-up over the load with its 90 % band, the line at 1, and the range of the crossing."""
    loads = tuple(load.concurrency for load in one.loads)
    found = [load.speedup for load in one.loads]
    series = Series(
        "speed-up",
        Look.SPECULATIVE,
        tuple(None if value is None else value.value for value in found),
        tuple(None if value is None else value.low for value in found),
        tuple(None if value is None else value.high for value in found),
        band=True,
    )
    values = [edge for value in found if value is not None for edge in (value.low, value.high)]
    if not values:
        return ""
    ticks = nice_ticks(min(*values, 1.0), max(*values, 1.0))
    frame = Frame(loads, ticks[0], ticks[-1])
    root = canvas(f"Predicted speed-up by load, {one.variant}")
    draw_axes(root, frame, ticks, "times")
    y = frame.y(1.0)
    root.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="reference"))
    _crossing_mark(root, one, frame)
    draw_spread(root, frame, series)
    draw_line(root, frame, series)
    label_lines(root, frame, (series,))
    return ElementTree.tostring(root, encoding="unicode")


def memory_note(forecasts: Sequence[VariantForecast]) -> str:
    """Which letter is which part."""
    used = {part.part for one in forecasts for part in one.memory.parts}
    return "; ".join(f"{_LETTERS[index]} {name}" for index, name in enumerate(PARTS) if name in used)


def _roofline_note(forecasts: Sequence[VariantForecast]) -> str:
    devices = sorted({(one.device, one.ridge) for one in forecasts})
    words = ", ".join(f"{name} {ridge:.0f}" for name, ridge in devices)
    numbers = "; ".join(f"{number} {one.variant}" for number, one in enumerate(forecasts, start=1))
    return f"Plain decode steps, a point for each load. Ridge in FLOP/byte, dense peaks: {words}. {numbers}"


def _speedup_note(one: VariantForecast) -> str:
    assert one.acceptance is not None
    found = one.crossover
    where = "no crossing up to 1,024 concurrent requests"
    if found is not None and found.concurrency is not None and found.low is not None and found.high is not None:
        where = f"crossing at {found.concurrency:.0f}, likely within {found.low:.0f} to {found.high:.0f}"
    return f"Acceptance length {one.acceptance.length:.2f} ({one.acceptance.source}); {where}. The band holds 90 %."


def _decades(values: Sequence[float]) -> tuple[int, int]:
    known = [value for value in values if value > 0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    return low, max(high, low + 1)


def _log_axes(root: ElementTree.Element, place: _Placed, spans: tuple[int, int], heights: tuple[int, int]) -> None:
    for power in range(spans[0], spans[1] + 1):
        x, _ = place(10.0**power, 10.0 ** heights[0])
        root.append(element("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="grid"))
        root.append(element("text", f"{10.0**power:g}", x=x, y=HEIGHT - BOTTOM + 18, class_="tick middle"))
    for power in range(heights[0], heights[1] + 1):
        _, y = place(10.0 ** spans[0], 10.0**power)
        root.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        root.append(element("text", _rate_words(power), x=LEFT - 6, y=y + 4, class_="tick end"))
    root.append(element("text", "FLOP per byte", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 6, class_="axis middle"))


def _rate_words(power: int) -> str:
    for unit, exponent in (("P", 15), ("T", 12), ("G", 9), ("M", 6)):
        if power >= exponent:
            return f"{10 ** (power - exponent)} {unit}"
    return f"1e{power}"


def _roofs(
    root: ElementTree.Element,
    forecasts: Sequence[VariantForecast],
    place: _Placed,
    edges: tuple[float, float, float],
) -> None:
    """The roof of every device and peak, with its name where the drawing ends, moved apart where names would touch."""
    first, last, floor = edges
    above = float("inf")
    roofs = {(one.peak_flops, one.bandwidth_bytes_per_s, one.device) for one in forecasts}
    for peak, bandwidth, name in sorted(roofs):
        corners = [place(first, max(first * bandwidth, floor)), place(peak / bandwidth, peak), place(last, peak)]
        root.append(element("polyline", points=" ".join(f"{x},{y}" for x, y in corners), class_="line baseline"))
        above = min(corners[2][1] + 4, above - LABEL_GAP)
        words = f"{name} {_peak_words(peak)}"
        root.append(element("text", words, x=corners[2][0] + 4, y=above, class_="tick"))


def _roof_points(root: ElementTree.Element, one: VariantForecast, place: _Placed, number: int) -> None:
    """The loads of one variant: a line with marks, and the variant's number at the last."""
    corners = [place(load.intensity, achieved_flops(one, index)) for index, load in enumerate(one.loads)]
    points = " ".join(f"{x},{y}" for x, y in corners)
    root.append(element("polyline", points=points, class_="line speculative"))
    for (x, y), load in zip(corners, one.loads, strict=True):
        mark = element("circle", cx=x, cy=y, r=3.5, class_="mark speculative")
        mark.append(element("title", f"{one.variant}, {load.concurrency} concurrent: {load.roof.value} bound"))
        root.append(mark)
    x, y = corners[-1]
    root.append(element("text", f"{number}", x=x + 6, y=y + 4 + 9 * (number % 3 - 1), class_="value"))


def _memory_bar(root: ElementTree.Element, one: VariantForecast, top: float, scale: float) -> None:
    """Segments by part with their letters, the variant above, a tall mark at the usable size."""
    words = f"{one.variant}: {one.memory.total.value / 1e9:.1f} GB, {one.memory.fit.value}"
    root.append(element("text", words, x=14, y=top - 4, class_="label baseline" if _bad(one.memory) else "value"))
    x = 14.0
    for part in one.memory.parts:
        width = part.size_bytes * scale
        box = element("rect", x=round(x, 2), y=top, width=round(width, 2), height=_BAR, class_="segment")
        box.append(element("title", f"{part.part}: {part.size_bytes / 1e9:.2f} GB = {part.formula}"))
        root.append(box)
        if width > 11:
            letter = _LETTERS[PARTS.index(part.part)]
            root.append(element("text", letter, x=round(x + width / 2, 2), y=top + 12.5, class_="inside middle"))
        x += width
    if one.memory.usable_bytes is not None:
        edge = round(14 + one.memory.usable_bytes * scale, 2)
        root.append(element("line", x1=edge, x2=edge, y1=top - 3, y2=top + _BAR + 3, class_="reference"))
        root.append(element("text", "usable", x=edge, y=top + _BAR + 12, class_="tick middle"))


def _bad(memory: MemoryForecast) -> bool:
    return memory.fit is not Fit.FITS


def _crossing_mark(root: ElementTree.Element, one: VariantForecast, frame: Frame) -> None:
    """The range in which the crossing is likely, where the drawing reaches it."""
    found = one.crossover
    if found is None or found.concurrency is None or found.low is None or found.high is None:
        return
    first, last = frame.loads[0], frame.loads[-1]
    low, high = max(found.low, first), min(found.high, last)
    if low <= last and high >= first:
        band = element("rect", x=frame.x(low), y=TOP, width=max(frame.x(high) - frame.x(low), 1.0))
        band.set("height", f"{HEIGHT - TOP - BOTTOM}")
        band.set("class", "range")
        root.append(band)
    if first <= found.concurrency <= last:
        x = frame.x(found.concurrency)
        root.append(element("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="crossing"))
        root.append(element("text", f"crosses at {short(found.concurrency)}", x=x, y=TOP - 4, class_="value middle"))


def _peak_words(peak: float) -> str:
    """FLOP/s in the unit that gives short numbers."""
    for unit, size in (("P", 1e15), ("T", 1e12)):
        if peak >= size:
            return f"{peak / size:.3g} {unit}"
    return f"{peak / 1e9:.3g} G"
