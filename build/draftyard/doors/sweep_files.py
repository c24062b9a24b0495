"""Reads a sweep: a CSV of measured points for a calibration."""

import csv
from dataclasses import dataclass
from pathlib import Path

from draftyard.nouns.errors import Failure, Problem, raise_problems

COLUMNS = ("variant", "concurrency", "input_tokens", "output_tokens", "tpot_ms")
OPTIONAL = ("ttft_ms", "speedup", "acceptance_length")


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One line: a variant at one load, and what was measured there; None where a column is empty."""

    variant: str
    concurrency: int
    input_tokens: int
    output_tokens: int
    tpot_ms: float
    ttft_ms: float | None
    speedup: float | None
    acceptance_length: float | None


def read_sweep(path: Path) -> tuple[SweepPoint, ...]:
    """All points; Failure names every line that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path} cannot be read: {error}", "give a CSV file of measured points") from error
    rows = csv.DictReader(text.splitlines())
    lacking = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if lacking:
        raise Failure(f"{path.name} lacks {', '.join(lacking)}", f"its first line names {', '.join(COLUMNS)}")
    problems: list[Problem] = []
    points = []
    for number, row in enumerate(rows, start=2):
        try:
            points.append(_point(row))
        except ValueError as error:
            problems.append(Problem(f"{path.name} line {number}: {error}", "correct the line"))
    raise_problems(problems)
    return tuple(points)


def _point(row: dict[str, str]) -> SweepPoint:
    return SweepPoint(
        variant=row["variant"],
        concurrency=int(_positive(row["concurrency"])),
        input_tokens=int(_positive(row["input_tokens"])),
        output_tokens=int(_positive(row["output_tokens"])),
        tpot_ms=_positive(row["tpot_ms"]),
        ttft_ms=_maybe(row.get("ttft_ms")),
        speedup=_maybe(row.get("speedup")),
        acceptance_length=_maybe(row.get("acceptance_length")),
    )


def _maybe(text: str | None) -> float | None:
    return _positive(text) if text and text.strip() else None


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"{text} is not above 0")
    return value
