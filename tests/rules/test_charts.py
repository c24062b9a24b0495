"""Charts are well-formed, put values where they belong, and can be read without colour."""

from xml.etree import ElementTree

import pytest

from draftyard.nouns.chart import Look, Series
from draftyard.rules.charts import Frame, histogram_chart, line_chart, nice_ticks


def parts(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(tag))


def test_ticks_are_round_and_hold_the_range() -> None:
    assert nice_ticks(0, 3.4) == (0, 1, 2, 3, 4)
    assert nice_ticks(0.83, 1.6) == (0.8, 1.0, 1.2, 1.4, 1.6)
    for high in (0.003, 7.0, 99.0, 1234.5, 2e6):
        ticks = nice_ticks(0, high)
        assert ticks[0] == 0
        assert ticks[-1] >= high
        assert 3 <= len(ticks) <= 8


def test_loads_lie_at_their_logarithm() -> None:
    frame = Frame((1, 2, 4, 8), 0.0, 10.0)
    gaps = [frame.x(2) - frame.x(1), frame.x(4) - frame.x(2), frame.x(8) - frame.x(4)]
    assert gaps == pytest.approx([gaps[0]] * 3, abs=0.02)
    assert frame.y(0.0) > frame.y(10.0)


def test_lines_have_marks_labels_and_a_reference() -> None:
    series = Series("speed-up", Look.SPECULATIVE, (1.4, 1.2, None), (1.3, 1.1, None), (1.5, 1.3, None), band=True)
    svg = line_chart("Speed-up", "times", (1, 2, 4), (series,), reference=1.0)
    assert len(parts(svg, "circle")) == 2
    assert len(parts(svg, "polygon")) == 1
    assert "reference" in {line.get("class") for line in parts(svg, "line")}
    texts = [text.text for text in parts(svg, "text")]
    assert "speed-up" in texts
    assert "1.2" in texts
    assert ElementTree.fromstring(svg).get("aria-label") == "Speed-up"


def test_labels_of_close_lines_do_not_touch() -> None:
    lines = (Series("one", Look.SPECULATIVE, (1.0, 2.0)), Series("two", Look.BASELINE, (1.0, 2.01)))
    svg = line_chart("Rates", "tokens/s", (1, 2), lines)
    heights = [float(text.get("y", "0")) for text in parts(svg, "text") if "label" in (text.get("class") or "")]
    assert abs(heights[0] - heights[1]) >= 28


def test_bars_show_shares() -> None:
    svg = histogram_chart("Accepted", (6, 2, 2))
    assert len(parts(svg, "rect")) == 3
    assert [text.text for text in parts(svg, "text")][:2] == ["60%", "0"]


def test_nothing_measured_draws_nothing() -> None:
    assert histogram_chart("Accepted", (0, 0)) == ""
    assert line_chart("Rates", "tokens/s", (1,), (Series("one", Look.BASELINE, (None,)),)) == ""
