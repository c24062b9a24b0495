"""Errors of predictions against measurements, and how often the intervals hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.predict.cases import Case
from benchmarks.predict.fitting import FEWEST, FamilyFit, base_of, fit_family, interval, predict
from draftyard.nouns.digest import Json


@dataclass(frozen=True)
class Score:
    """Absolute percentage errors of some rows; `coverage` is the share inside the 90 % interval, None without one."""

    rows: int
    median: float
    mean: float
    p90: float
    coverage: float | None = None

    def as_json(self) -> dict[str, Json]:
        """Numbers in percent, one digit."""
        found: dict[str, Json] = {
            "rows": self.rows,
            "median_percent": round(100 * self.median, 2),
            "mean_percent": round(100 * self.mean, 2),
            "p90_percent": round(100 * self.p90, 2),
        }
        if self.coverage is not None:
            found["coverage_percent"] = round(100 * self.coverage, 1)
        return found


@dataclass
class FamilyScores:
    """Everything that is said of one family; a part is None where there were too few rows for it."""

    family: str
    physics: Score | None = None
    fitted_half: Score | None = None
    other_half: Score | None = None
    shipped: Score | None = None
    model_out: Score | None = None
    gpu_out: Score | None = None
    suspect: Score | None = None
    by_gpu: dict[str, Score] = field(default_factory=dict)


def score(predicted: Sequence[float], measured: Sequence[float], inside: Sequence[bool] | None = None) -> Score | None:
    """The errors of these rows; None when there are none."""
    if not len(predicted):
        return None
    errors = np.abs(np.asarray(predicted) / np.asarray(measured) - 1.0)
    return Score(
        rows=len(errors),
        median=float(np.median(errors)),
        mean=float(np.mean(errors)),
        p90=float(np.quantile(errors, 0.9)),
        coverage=None if inside is None else float(np.mean(inside)),
    )


def score_cases(fitted: FamilyFit, cases: Sequence[Case]) -> Score | None:
    """Errors and coverage of a fit on cases."""
    if not cases:
        return None
    predicted, inside = predict(fitted, cases), []
    for case, value in zip(cases, predicted, strict=True):
        low, high = interval(fitted, case)
        inside.append(value * low <= case.measured <= value * high)
    return score(predicted.tolist(), [case.measured for case in cases], inside)


def score_family(
    family: str, cases: Sequence[Case], in_fit: Callable[[Case], bool], shipped: FamilyFit | None, outs: bool
) -> FamilyScores:
    """One half fitted and the other predicted, the shipped fit, and models and GPUs left out in turn."""
    found = FamilyScores(family)
    good = [case for case in cases if not case.row.suspect]
    doubted = [case for case in cases if case.row.suspect]
    fit = [case for case in good if in_fit(case)]
    test = [case for case in good if not in_fit(case)]
    if len(fit) >= FEWEST and test:
        fitted = fit_family(fit)
        found.fitted_half, found.other_half = score_cases(fitted, fit), score_cases(fitted, test)
        found.physics = score(base_of(fitted, test).tolist(), [case.measured for case in test])
        found.suspect = score_cases(fitted, doubted)
        for gpu in sorted({case.gpu for case in test}):
            one = score_cases(fitted, [case for case in test if case.gpu == gpu])
            if one is not None:
                found.by_gpu[gpu] = one
    if shipped is not None:
        found.shipped = score_cases(shipped, good)
        found.suspect = found.suspect or score_cases(shipped, doubted)
    if outs:
        found.model_out = left_out(good, lambda case: case.model)
        found.gpu_out = left_out(good, lambda case: case.gpu)
    return found


def left_out(cases: Sequence[Case], name: Callable[[Case], str]) -> Score | None:
    """Every name left out of the fit in turn and predicted from the others; the errors pooled."""
    names = sorted({name(case) for case in cases})
    predicted: list[float] = []
    measured: list[float] = []
    for one in names:
        kept = [case for case in cases if name(case) != one]
        away = [case for case in cases if name(case) == one]
        if len(kept) >= FEWEST:
            predicted += predict(fit_family(kept, intervals=False), away).tolist()
            measured += [case.measured for case in away]
    return score(predicted, measured) if len(names) > 1 else None
