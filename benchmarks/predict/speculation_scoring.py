"""Errors of speed-ups: from acceptance length, from a smaller batch, and of the load where speculation stops paying."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.predict.scoring import Score, score
from benchmarks.predict.speculation_cases import SpecCase
from benchmarks.predict.speculation_fit import pairs
from benchmarks.predict.speculation_model import (
    SpecFit,
    crossings,
    fit_speculation,
    known_cases,
    scaled_speedups,
    speedups,
)


@dataclass
class CrossingScore:
    """Curves seen to cross 1, how many of them predicted within a factor 2, the median factor, and each one."""

    curves: int
    within_two: int
    median_factor: float
    each: list[tuple[str, float, float | None]]


@dataclass
class SpecScores:
    """Scores of one fit on some rows, with its corrections and by its law alone."""

    calibrated: Score | None = None
    law: Score | None = None
    batch: Score | None = None
    batch_law: Score | None = None
    crossing: CrossingScore | None = None
    crossing_law: CrossingScore | None = None
    sides: tuple[int, int] = (0, 0)


@dataclass
class SpecReport:
    """The fitted half, the other half, the shipped fit, and models left out in turn."""

    fitted_half: SpecScores = field(default_factory=SpecScores)
    other_half: SpecScores = field(default_factory=SpecScores)
    shipped: SpecScores = field(default_factory=SpecScores)
    model_out: Score | None = None
    suspect: int = 0


def score_speculation(
    cases: Sequence[SpecCase], in_fit: Callable[[SpecCase], bool], shipped: SpecFit | None, outs: bool
) -> SpecReport:
    """Fit on one half of rows and curve points, predict the other; the same with the shipped fit."""
    found = SpecReport()
    good = [case for case in cases if not case.row.suspect]
    found.suspect = len(cases) - len(good)
    points = pairs(good)
    fit_points = [pair for pair in points if in_fit(pair.case)]
    fit = [case for case in good if in_fit(case)]
    test = [case for case in good if not in_fit(case)]
    if len(known_cases(fit)) >= 20 and test:
        fitted = fit_speculation(fit, fit_points)
        found.fitted_half = scores(fitted, good, in_fit)
        found.other_half = scores(fitted, good, lambda case: not in_fit(case))
    if shipped is not None:
        found.shipped = scores(shipped, good, lambda case: True)
    if outs:
        found.model_out = _models_out(good)
    return found


def scores(fitted: SpecFit, cases: Sequence[SpecCase], wanted: Callable[[SpecCase], bool]) -> SpecScores:
    """Scores on the wanted rows; a curve's first point may be any row, since it is measured, not predicted."""
    known = [case for case in known_cases(cases) if wanted(case)]
    points = [pair for pair in pairs(cases) if wanted(pair.case)]
    measured = [case.speedup for case in known]
    found = SpecScores()
    if known:
        found.calibrated = _with_bounds(fitted, "calibrated", speedups(fitted, known), measured)
        found.law = _with_bounds(fitted, "law", speedups(fitted, known, corrected=False), measured)
    if points:
        later = [pair.case.speedup for pair in points]
        scaled = scaled_speedups(fitted, points)
        found.batch = _with_bounds(fitted, "batch", scaled, later)
        found.batch_law = score(scaled_speedups(fitted, points, corrected=False), later)
        right = sum((one > 1) == (two > 1) for one, two in zip(scaled, later, strict=True))
        found.sides = (right, len(later))
    found.crossing = _crossing(crossings(fitted, cases))
    found.crossing_law = _crossing(crossings(fitted, cases, corrected=False))
    return found


def _with_bounds(fitted: SpecFit, kind: str, predicted: Sequence[float], measured: Sequence[float]) -> Score | None:
    low, high = (float(np.exp(bound)) for bound in fitted.bounds.get(kind, (-0.3, 0.3)))
    inside = [one * low <= two <= one * high for one, two in zip(predicted, measured, strict=True)]
    return score(predicted, measured, inside)


def _crossing(found: list[tuple[str, float, float | None]]) -> CrossingScore | None:
    if not found:
        return None
    factors = [max(ours / seen, seen / ours) if ours else float("inf") for _, seen, ours in found]
    return CrossingScore(len(found), sum(one <= 2.0 for one in factors), float(np.median(factors)), found)


def _models_out(cases: Sequence[SpecCase]) -> Score | None:
    predicted: list[float] = []
    measured: list[float] = []
    known = known_cases(cases)
    for model in sorted({case.model for case in known}):
        kept = [case for case in cases if case.model != model]
        away = [case for case in known if case.model == model]
        if len(known_cases(kept)) >= 20:
            predicted += speedups(fit_speculation(kept, intervals=False), away)
            measured += [case.speedup for case in away]
    return score(predicted, measured)
