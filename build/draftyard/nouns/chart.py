"""What a chart shows, before it is drawn."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class Look(StrEnum):
    """How a series is told apart, also without colour: solid or dashed, filled or hollow marks."""

    SPECULATIVE = "speculative"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Series:
    """One line: a value per tick, None where there is none; `low` and `high` draw a band or whiskers."""

    name: str
    look: Look
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    band: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart: SVG text, and the words around it."""

    title: str
    note: str
    svg: str
