"""The cost law with its correction: speed-ups from acceptance, from a smaller batch, and where curves cross 1."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.predict.fit_correction import Smoothness, learn
from benchmarks.predict.fitting import hash_fold, tail_bounds
from benchmarks.predict.speculation_cases import SpecCase, at_batch
from benchmarks.predict.speculation_fit import Pair, costs, curves, fit_law, law_of, pairs, step_coefficients
from draftyard.rules.predict.correction import NOTHING, Correction
from draftyard.rules.predict.priors import DRAFTING
from draftyard.rules.predict.speculation import SpeculationCoefficients, crossing, iteration_cost
from draftyard.rules.predict.step_time import step_ms

LARGEST_KNOWN_BATCH = 8.0  # acceptance tells the cost directly up to here; above, other things fall with the batch
_KNOTS = ((0.0, 3.0, 5.0, 7.0), (1.5, 4.5))
# Chosen by four-fold cross-validation inside one half of the rows alone. Levels: engine on a device, method, model,
# method with its tree, model with method and tree, data set.
_SMOOTH = Smoothness((0.048, 0.03, 0.0, 0.1, 0.16, 0.024), (0.048, 0.15, 0.048, 0.1, 0.03, 0.05), (0.54, 3.2), 0.08)


@dataclass
class SpecFit:
    """The law, its correction, and the bounds of log(measured / predicted) of speed-ups by kind of prediction."""

    law: SpeculationCoefficients = DRAFTING
    correction: Correction = NOTHING
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)


def known_cases(cases: Sequence[SpecCase]) -> list[SpecCase]:
    """Cases whose acceptance tells their cost."""
    return [case for case in cases if case.acceptance and case.batch <= LARGEST_KNOWN_BATCH]


def fit_speculation(cases: Sequence[SpecCase], points: Sequence[Pair] | None = None, intervals: bool = True) -> SpecFit:
    """Law, correction and intervals. `points` are the curves' points to learn from, by default all."""
    known = [case for case in known_cases(cases) if not case.row.suspect]
    used = list(pairs(cases) if points is None else points)
    found = fit_law(known, used)
    law = law_of(found)
    fitted = SpecFit(law, _correct(known, used, law), errors=found.errors.tolist())
    if intervals:
        fitted.bounds = _bounds(known, used)
    return fitted


def speedups(fitted: SpecFit, cases: Sequence[SpecCase], corrected: bool = True) -> list[float]:
    """Acceptance length over cost."""
    laws = costs(cases, fitted.law)
    factors = [fitted.correction.factor(case.groups, position(case)) if corrected else 1.0 for case in cases]
    return [
        float((case.acceptance or 1.0) / (law * factor)) for case, law, factor in zip(cases, laws, factors, strict=True)
    ]


def scaled_speedups(fitted: SpecFit, points: Sequence[Pair], corrected: bool = True) -> list[float]:
    """Speed-up at a larger batch: the curve's first speed-up times the ratio of costs."""
    if not points:
        return []
    above = costs([pair.case for pair in points], fitted.law)
    below = costs([pair.anchor for pair in points], fitted.law)
    found = []
    for pair, high, low in zip(points, above, below, strict=True):
        ratio = high / low
        if corrected:
            ratio *= math.exp(_difference(fitted.correction, pair.case, pair.anchor))
        found.append(float(pair.anchor.speedup / ratio))
    return found


def crossings(
    fitted: SpecFit, cases: Sequence[SpecCase], corrected: bool = True
) -> list[tuple[str, float, float | None]]:
    """For every curve that is seen to fall below 1: its name, where it does, and where it is predicted to.

    Curves that start below 1 say nothing and are left out.
    """
    found = []
    for curve in curves(cases):
        seen = crossing([case.batch for case in curve], [case.speedup for case in curve])
        if seen is None or seen == curve[0].batch:
            continue
        first = curve[0]
        loads = [first.batch * 2 ** (step / 8) for step in range(81)]
        values = [
            first.speedup * _cost(fitted, first, first.batch, corrected) / _cost(fitted, first, load, corrected)
            for load in loads
        ]
        found.append((first.curve, seen, crossing(loads, values)))
    return found


def position(case: SpecCase) -> tuple[float, float]:
    """Octaves of the batch and of the plain step's milliseconds."""
    plain = case.terms.measured_ms or step_ms(case.terms.plain, step_coefficients(case))
    return math.log2(case.batch), math.log2(plain)


def _cost(fitted: SpecFit, case: SpecCase, batch: float, corrected: bool) -> float:
    terms = replace(at_batch(case, batch), measured_ms=0.0)
    cost = iteration_cost(terms, step_coefficients(case), fitted.law)
    if not corrected:
        return cost
    return cost * fitted.correction.factor(case.groups, (math.log2(batch), position(case)[1]))


def _difference(correction: Correction, case: SpecCase, anchor: SpecCase) -> float:
    here = position(case)
    return correction.log_ratio(case.groups, here) - correction.log_ratio(case.groups, (position(anchor)[0], here[1]))


def _correct(known: Sequence[SpecCase], points: Sequence[Pair], law: SpeculationCoefficients) -> Correction:
    first = costs(known, law)
    ratios = [math.log((case.acceptance or 1.0) / case.speedup / cost) for case, cost in zip(known, first, strict=True)]
    if points:
        above = costs([pair.case for pair in points], law)
        below = costs([pair.anchor for pair in points], law)
        ratios += [
            math.log(pair.anchor.speedup / pair.case.speedup / (high / low))
            for pair, high, low in zip(points, above, below, strict=True)
        ]
    places = [position(case) for case in known] + [position(pair.case) for pair in points]
    anchors: list[tuple[float, float] | None] = [None] * len(known)
    anchors += [(position(pair.anchor)[0], position(pair.case)[1]) for pair in points]
    groups = [case.groups for case in known] + [pair.case.groups for pair in points]
    return learn(_KNOTS, groups, places, np.array(ratios), _SMOOTH, anchors)


def _bounds(known: Sequence[SpecCase], points: Sequence[Pair]) -> dict[str, tuple[float, float]]:
    """Quantiles of log(measured / predicted speed-up) on rows left out of law and correction."""
    found: dict[str, list[float]] = {"calibrated": [], "law": [], "batch": []}
    for fold in range(6):
        kept = [case for case in known if hash_fold(case.row.configuration, 6) != fold]
        kept_points = [pair for pair in points if hash_fold(pair.case.row.configuration, 6) != fold]
        out = [case for case in known if hash_fold(case.row.configuration, 6) == fold]
        out_points = [pair for pair in points if hash_fold(pair.case.row.configuration, 6) == fold]
        law = law_of(fit_law(kept, kept_points))
        again = SpecFit(law, _correct(kept, kept_points, law))
        found["calibrated"] += _logs([case.speedup for case in out], speedups(again, out))
        found["law"] += _logs([case.speedup for case in out], speedups(again, out, corrected=False))
        found["batch"] += _logs([pair.case.speedup for pair in out_points], scaled_speedups(again, out_points))
    return {name: tail_bounds(values) for name, values in found.items() if values}


def _logs(measured: Sequence[float], predicted: Sequence[float]) -> list[float]:
    return [math.log(one / two) for one, two in zip(measured, predicted, strict=True)]
