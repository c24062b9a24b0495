"""The table and the JSON of a run: errors by family beside their goals, and every row that was left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.predict.scoring import FamilyScores, Score
from benchmarks.predict.speculation_scoring import CrossingScore, SpecReport, SpecScores
from draftyard.nouns.digest import Json

# Median absolute percentage error that a family is to reach on rows that were not fitted.
GOALS = {
    "decode step": 6.0,
    "TTFT": 6.0,
    "memory": 2.2,
    "throughput, PyTorch backend": 5.0,
    "throughput, engine backend": 8.0,
    "speed-up, calibrated": 5.0,
    "speed-up, law alone": 9.0,
}
CROSSING_GOAL = 21 / 23


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    family: str
    physics: Score | None
    fitted_half: Score | None
    other_half: Score | None
    shipped: Score | None
    model_out: Score | None
    gpu_out: Score | None


def lines(scores: Sequence[FamilyScores], spec: SpecReport) -> list[Line]:
    """All families, those of speculation last."""
    found = [
        Line(one.family, one.physics, one.fitted_half, one.other_half, one.shipped, one.model_out, one.gpu_out)
        for one in scores
    ]
    halves = (spec.fitted_half, spec.other_half, spec.shipped)
    found.append(_spec_line("speed-up, calibrated", [one.calibrated for one in halves], spec.other_half.law, spec))
    found.append(_spec_line("speed-up, law alone", [one.law for one in halves], spec.other_half.law, None))
    found.append(_spec_line("batch dependence", [one.batch for one in halves], spec.other_half.batch_law, None))
    return found


def _spec_line(name: str, halves: list[Score | None], law: Score | None, spec: SpecReport | None) -> Line:
    return Line(name, law, halves[0], halves[1], halves[2], spec.model_out if spec else None, None)


def print_scores(
    scores: Sequence[FamilyScores],
    spec: SpecReport,
    halves: tuple[str, str],
    left: Mapping[str, Sequence[str]],
    total: int,
) -> None:
    """Tables for people."""
    console = Console(width=200, highlight=False)
    table = Table(
        title=f"median / 90th percentile of the absolute error in %, rows; fit: {halves[0]}, test: {halves[1]}"
    )
    heads = (
        "family",
        "goal",
        "test, physics alone",
        "fit",
        "test",
        "coverage",
        "stored fit",
        "coverage",
        "no model",
        "no GPU",
    )
    for head in heads:
        table.add_column(head, justify="left" if head == "family" else "right")
    for line in lines(scores, spec):
        goal = GOALS.get(line.family)
        cells = [_cell(line.physics), _cell(line.fitted_half), _cell(line.other_half), _coverage(line.other_half)]
        cells += [_cell(line.shipped), _coverage(line.shipped), _cell(line.model_out), _cell(line.gpu_out)]
        table.add_row(line.family, "" if goal is None else f"{goal:g}", *cells)
    console.print(table)
    for name, one in (("test half", spec.other_half), ("stored fit", spec.shipped)):
        _print_crossing(console, name, one)
    console.print(
        "stored fit: the coefficients in engines/, fitted on the rows whose digest they name; an error on those rows "
        "is the error of a fit, on others that of a prediction"
    )
    _print_left(console, scores, spec, left, total)


def _print_crossing(console: Console, name: str, one: SpecScores) -> None:
    for kind, crossing in (("with corrections", one.crossing), ("law alone", one.crossing_law)):
        if crossing is not None:
            console.print(
                f"crossover, {name}, {kind}: within 2x in {crossing.within_two} of {crossing.curves} curves "
                f"(goal 21 of 23), median factor {crossing.median_factor:.2f}"
            )
    if one.sides[1]:
        console.print(f"win or lose at a larger batch, {name}: right in {one.sides[0]} of {one.sides[1]}")


def _print_left(
    console: Console,
    scores: Sequence[FamilyScores],
    spec: SpecReport,
    left: Mapping[str, Sequence[str]],
    total: int,
) -> None:
    doubted = sum(one.suspect.rows for one in scores if one.suspect) + spec.suspect
    out = sum(len(ids) for ids in left.values())
    console.print(f"{total} rows; {total - out} in a family, {doubted} of them suspect and kept apart; {out} in none:")
    for reason, ids in sorted(left.items(), key=lambda item: -len(item[1])):
        console.print(f"  {len(ids):5d}  {reason}: {', '.join(ids[:6])}{' ...' if len(ids) > 6 else ''}")


def as_json(
    scores: Sequence[FamilyScores],
    spec: SpecReport,
    halves: tuple[str, str],
    left: Mapping[str, Sequence[str]],
    total: int,
) -> dict[str, Json]:
    """Everything that is printed, and the ids of every row in no family."""
    families: list[Json] = []
    for line in lines(scores, spec):
        goal = GOALS.get(line.family)
        families.append(
            {
                "family": line.family,
                "goal_median_percent": goal,
                "test_physics_alone": _score(line.physics),
                "fitted_half": _score(line.fitted_half),
                "test_half": _score(line.other_half),
                "stored_fit": _score(line.shipped),
                "model_left_out": _score(line.model_out),
                "gpu_left_out": _score(line.gpu_out),
                "test_half_meets_goal": _met(line.other_half, goal),
                "stored_fit_meets_goal": _met(line.shipped, goal),
            }
        )
    return {
        "rows": total,
        "halves": {"fit": halves[0], "test": halves[1]},
        "families": families,
        "suspect": {one.family: _score(one.suspect) for one in scores if one.suspect},
        "by_gpu": {one.family: {gpu: _score(part) for gpu, part in one.by_gpu.items()} for one in scores},
        "crossover": {
            name: {
                "corrected": _crossing(part.crossing),
                "law_alone": _crossing(part.crossing_law),
                "win_or_lose_right": list(part.sides),
            }
            for name, part in (("test_half", spec.other_half), ("stored_fit", spec.shipped))
        },
        "in_no_family": {reason: list(ids) for reason, ids in left.items()},
    }


def _met(found: Score | None, goal: float | None) -> bool | None:
    return None if found is None or goal is None else 100 * found.median <= goal


def _crossing(found: CrossingScore | None) -> Json:
    if found is None:
        return None
    return {
        "curves": found.curves,
        "within_factor_2": found.within_two,
        "meets_goal": found.within_two / found.curves >= CROSSING_GOAL,
        "median_factor": round(found.median_factor, 3) if found.median_factor < float("inf") else None,
        "each": [{"curve": name, "measured": seen, "predicted": ours} for name, seen, ours in found.each],
    }


def _score(found: Score | None) -> Json:
    return None if found is None else found.as_json()


def _cell(found: Score | None) -> str:
    return "" if found is None else f"{100 * found.median:.1f} / {100 * found.p90:.1f} ({found.rows})"


def _coverage(found: Score | None) -> str:
    return "" if found is None or found.coverage is None else f"{100 * found.coverage:.0f} %"
