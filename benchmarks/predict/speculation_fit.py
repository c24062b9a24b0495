"""Fits the cost law of an iteration to speed-ups with known acceptance and to speed-up curves over the batch."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.predict.fit_physics import Fitted, fit_positive
from benchmarks.predict.speculation_cases import SpecCase
from draftyard.nouns.prediction import StepCoefficients, StepTerms
from draftyard.rules.predict.priors import DRAFTING, EAGER, GRAPHS
from draftyard.rules.predict.speculation import (
    DraftTerms,
    IterationTerms,
    SpeculationCoefficients,
    iteration_cost,
)

Vector = NDArray[np.float64]
NAMES = tuple(one.name for one in fields(SpeculationCoefficients))
SPREADS = (1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 0.4, 0.4, 0.6)


@dataclass(frozen=True)
class Pair:
    """A point of a curve and the curve's point at the smallest batch."""

    case: SpecCase
    anchor: SpecCase


def curves(cases: Sequence[SpecCase]) -> list[list[SpecCase]]:
    """Runs that differ in batch alone, by rising batch; those with one batch are left out."""
    found: defaultdict[str, dict[float, SpecCase]] = defaultdict(dict)
    for case in cases:
        found[case.curve].setdefault(case.batch, case)
    return [[curve[batch] for batch in sorted(curve)] for curve in found.values() if len(curve) > 1]


def pairs(cases: Sequence[SpecCase]) -> list[Pair]:
    """Every point of a curve but its first, with the first."""
    return [Pair(case, curve[0]) for curve in curves(cases) for case in curve[1:]]


def costs(cases: Sequence[SpecCase], fitted: SpeculationCoefficients) -> Vector:
    """The cost ratio of every case by the law."""
    return StackedCases(cases).costs(fitted) if cases else np.zeros(0)


class StackedCases:
    """Cases as arrays, put together once for many evaluations of the law."""

    def __init__(self, cases: Sequence[SpecCase]) -> None:
        self._eager = np.array([case.eager for case in cases])
        self._terms = _stacked([case.terms for case in cases])

    def costs(self, fitted: SpeculationCoefficients) -> Vector:
        """The cost ratio of every case by the law."""
        warm = np.asarray(iteration_cost(self._terms, GRAPHS, fitted))
        cold = np.asarray(iteration_cost(self._terms, EAGER, fitted))
        return np.where(self._eager, cold, warm)


def fit_law(known: Sequence[SpecCase], points: Sequence[Pair]) -> Fitted:
    """The law from cases with acceptance (their cost is acceptance / speed-up) and from curves (ratios of costs)."""
    measured = np.concatenate(
        [
            np.array([(case.acceptance or 1.0) / case.speedup for case in known]),
            np.array([pair.anchor.speedup / pair.case.speedup for pair in points]),
        ]
    )
    everything = [*known, *(pair.case for pair in points), *(pair.anchor for pair in points)]
    stacked, first, both = StackedCases(everything), len(known), len(known) + len(points)

    def predict(values: Vector) -> Vector:
        found = stacked.costs(SpeculationCoefficients(*(float(value) for value in values)))
        return np.concatenate([found[:first], found[first:both] / found[both:]])

    start = [float(getattr(DRAFTING, name)) for name in NAMES]
    return fit_positive(predict, measured, start, SPREADS)


def law_of(fitted: Fitted) -> SpeculationCoefficients:
    """The fitted values by name."""
    return SpeculationCoefficients(*fitted.values.tolist())


def _stacked(terms: Sequence[IterationTerms]) -> IterationTerms:
    # The law uses plain arithmetic only, so that arrays stand for numbers.
    def steps(which: str) -> StepTerms:
        values: list[Any] = [
            np.array([getattr(getattr(one, which), field.name) for one in terms]) for field in fields(StepTerms)
        ]
        return StepTerms(*values)

    draft: list[Any] = [np.array([getattr(one.draft, field.name) for one in terms]) for field in fields(DraftTerms)]
    rest: list[Any] = [np.array([one.experts for one in terms]), np.array([one.measured_ms for one in terms])]
    return IterationTerms(steps("plain"), steps("verify"), DraftTerms(*draft), *rest)


def step_coefficients(case: SpecCase) -> StepCoefficients:
    """Which engine the law assumes below a case."""
    return EAGER if case.eager else GRAPHS
