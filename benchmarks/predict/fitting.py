"""Fits everything a prediction of published rows needs: physics by engine, corrections by family, interval by tier."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.predict.cases import Case
from benchmarks.predict.fit_correction import Smoothness, learn
from benchmarks.predict.fit_physics import Fitted
from benchmarks.predict.physics import fit_physics, physical, prior_of, stack
from draftyard.rules.predict.correction import NOTHING, Correction

Vector = NDArray[np.float64]
FEWEST = 8  # rows below which an engine's physics is fitted with the whole family
_OCTAVES = (3.0, 6.0)  # batch 8 and 64 part the intervals' tiers
_FEWEST_IN_TIER = 25

# How the corrections may bend, chosen by five-fold cross-validation inside one half of the rows alone. Knots are
# base-2 logarithms of batch, input and output length (throughput: of the lengths).
_B7 = (0.0, 3.0, 5.0, 6.0, 7.0, 8.0, 10.0)
_KNOTS: dict[str, tuple[tuple[float, ...], ...]] = {
    "decode step": (_B7, (7.0, 11.0), (7.0, 12.0)),
    "TTFT": ((0.0, 3.0, 6.0, 10.0), (7.0, 11.0), (7.0,)),
    "memory": ((0.0, 5.0, 10.0), (7.0, 11.0), (7.0, 12.0)),
    "serving TPOT": ((0.0, 3.0, 5.0, 7.0), (7.0, 10.0, 13.0), (7.0, 10.0, 13.0)),
    "serving TTFT": ((0.0, 3.0, 5.0, 7.0), (7.0, 10.0, 13.0), (7.0, 10.0)),
    "serving throughput": ((0.0, 3.0, 5.0, 7.0), (7.0, 10.0, 13.0), (7.0, 10.0)),
    "throughput, PyTorch backend": ((7.0, 10.0, 14.0), (7.0, 10.0, 12.0)),
    "throughput, engine backend": ((7.0, 9.0, 11.0, 14.0), (7.0, 9.0, 11.0, 12.0)),
    "static tables": ((0.0, 3.0, 6.0, 9.0),),
}
_SMOOTH: dict[str, Smoothness] = {
    "decode step": Smoothness((0.016, 0.1, 0.029, 0.0), (0.48, 0.77, 0.06, 0.048), (3.0, 3.0, 4.8), 0.03),
    "TTFT": Smoothness((0.16, 0.16, 0.1, 0.0), (0.16, 0.054, 1.4, 0.16), (2.9, 3.0, 3.0), 0.0144),
    "memory": Smoothness((0.016, 0.16, 0.48, 0.0), (0.03, 0.048, 0.03, 0.06), (3.0, 0.9, 3.0), 0.03),
    "serving TPOT": Smoothness((0.1, 0.1, 0.0, 0.0, 0.0), (0.03, 0.036, 0.03, 0.1, 0.16), (3.0, 4.8, 3.0), 0.03),
    "serving TTFT": Smoothness((0.1, 0.1, 0.0, 0.0, 0.0), (0.023, 0.1, 0.1, 0.16, 0.1), (3.0, 3.0, 8.6), 0.03),
    "serving throughput": Smoothness(
        (0.046, 0.06, 0.0, 0.0, 0.0), (0.1, 0.3, 0.03, 0.03, 0.018), (9.0, 3.0, 0.9), 0.048
    ),
    "throughput, PyTorch backend": Smoothness(
        (0.009, 0.0, 0.048, 0.048, 0.0, 0.0, 0.0), (0.03, 0.096, 0.048, 0.048, 0.1, 0.1, 0.1), (23.0, 3.0), 0.03
    ),
    "throughput, engine backend": Smoothness(
        (0.14, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0), (0.48, 0.018, 0.018, 0.0032, 0.018, 0.03, 0.06), (1.4, 14.0), 0.048
    ),
    "static tables": Smoothness((0.0086, 0.0, 0.0), (0.086, 0.018, 0.018), (4.3,), 0.048),
}


@dataclass
class FamilyFit:
    """One family: coefficients by engine (`""`: of the whole family), correction, bounds of measured / predicted.

    `bounds` maps a tier to the 5 % and 95 % quantiles of log(measured / predicted) on rows left out of the fit.
    """

    physics: dict[str, Fitted] = field(default_factory=dict)
    correction: Correction = NOTHING
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)


def fit_family(cases: Sequence[Case], intervals: bool = True) -> FamilyFit:
    """Physics, correction and intervals from cases of one family. Cases that the collection doubts are left out."""
    used = [case for case in cases if not case.row.suspect]
    fitted = FamilyFit()
    by_engine: defaultdict[str, list[Case]] = defaultdict(list)
    for case in used:
        by_engine[case.fit].append(case)
    fitted.physics[""] = fit_physics(used)
    for engine, own in by_engine.items():
        if len(own) >= FEWEST:
            fitted.physics[engine] = fit_physics(own)
    fitted.correction = _correct(used, _left(fitted, used))
    if intervals:
        fitted.bounds = _bounds(used)
    return fitted


def base_of(fitted: FamilyFit, cases: Sequence[Case]) -> Vector:
    """What physics alone says."""
    found = np.zeros(len(cases))
    by_engine: defaultdict[str, list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        by_engine[case.fit if case.fit in fitted.physics else ""].append(index)
    for engine, indices in by_engine.items():
        found[indices] = physical(stack([cases[index] for index in indices]), fitted.physics[engine].values)
    return found


def predict(fitted: FamilyFit, cases: Sequence[Case]) -> Vector:
    """Physics times correction; physics alone for devices that the fit has not seen."""
    factors = [
        fitted.correction.factor(case.groups, case.position) if seen(fitted.correction, case) else 1.0 for case in cases
    ]
    predicted: Vector = base_of(fitted, cases) * np.array(factors)
    return predicted


def seen(correction: Correction, case: Case) -> bool:
    """Whether the correction knows the devices: left out in turn, unknown GPUs fare better without, models with it."""
    return all(group in correction.surfaces for group in case.groups if group.startswith("g:"))


def interval(fitted: FamilyFit, case: Case) -> tuple[float, float]:
    """Factors of the 90 % interval on a prediction."""
    known = tier(fitted.correction, case)
    coarse = known.split("/")[0]
    low, high = fitted.bounds.get(known) or fitted.bounds.get(coarse) or fitted.bounds["new"]
    return float(np.exp(low)), float(np.exp(high))


def tier(correction: Correction, case: Case) -> str:
    """How close the fit has been: the same run but for its load, another version of it, or a new one; by batch."""
    like = [group for group in case.groups if group.startswith("s:")]
    name = "same" if not like or like[0] in correction.surfaces else "new"
    if name == "same" and case.groups[-1] not in correction.surfaces:
        name = "near"
    octave = case.position[0] if case.family.startswith(("decode", "TTFT", "memory", "serving")) else 0.0
    part = sum(octave > edge for edge in _OCTAVES)
    return f"{name}/{part}"


def _left(fitted: FamilyFit, cases: Sequence[Case]) -> Vector:
    """log(measured / physics)."""
    ratios: Vector = np.log(np.array([case.measured for case in cases]) / base_of(fitted, cases))
    return ratios


def _correct(cases: Sequence[Case], left: Vector) -> Correction:
    family = cases[0].family
    return learn(
        _KNOTS[family], [case.groups for case in cases], [case.position for case in cases], left, _SMOOTH[family]
    )


def _bounds(cases: Sequence[Case]) -> dict[str, tuple[float, float]]:
    """Quantiles of what is left on rows left out: by configuration for `same`, by whole models for `new`."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    folds = [hash_fold(case.row.configuration, 8) for case in cases]
    for fold in sorted(set(folds)):
        _collect(cases, [one == fold for one in folds], found)
    if len({case.model for case in cases}) > 1:
        for model in sorted({case.model for case in cases}):
            _collect_unknown(cases, [case.model == model for case in cases], found)
    bounds = {
        name: tail_bounds(values) for name, values in found.items() if len(values) >= _FEWEST_IN_TIER or "/" not in name
    }
    bounds.setdefault("same", bounds.get("new", (-0.3, 0.3)))
    bounds.setdefault("new", (bounds["same"][0] * 2, bounds["same"][1] * 2))
    return bounds


def tail_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Bounds that hold 90 % of what comes next: the tails of a sample are taken a little wider than its own 5 %."""
    tail = max(0.05 - 0.5 / len(values), 0.0) * 0.85
    return float(np.quantile(values, tail)), float(np.quantile(values, 1.0 - tail))


def _collect(cases: Sequence[Case], out: Sequence[bool], found: defaultdict[str, list[float]]) -> None:
    """Residuals of the cases left out of physics and correction alike, where their model and devices are known."""
    kept = [case for case, away in zip(cases, out, strict=True) if not away]
    away_cases = [case for case, away in zip(cases, out, strict=True) if away]
    if len(kept) < FEWEST or not away_cases:
        return
    again = fit_family(kept, intervals=False)
    rest = np.log(np.array([case.measured for case in away_cases]) / predict(again, away_cases))
    for case, value in zip(away_cases, rest, strict=True):
        name = tier(again.correction, case)
        if not name.startswith("new"):
            found[name].append(float(value))
            found[name.split("/")[0]].append(float(value))


def _collect_unknown(cases: Sequence[Case], out: Sequence[bool], found: defaultdict[str, list[float]]) -> None:
    """Residuals on a model left out of physics and correction alike."""
    kept = [case for case, away in zip(cases, out, strict=True) if not away]
    away_cases = [case for case, away in zip(cases, out, strict=True) if away]
    if len(kept) < FEWEST:
        return
    again = fit_family(kept, intervals=False)
    rest = np.log(np.array([case.measured for case in away_cases]) / predict(again, away_cases))
    for case, value in zip(away_cases, rest, strict=True):
        found[tier(again.correction, case).replace("same", "new").replace("near", "new")].append(float(value))
        found["new"].append(float(value))


def hash_fold(text: str, folds: int) -> int:
    """A fold by a digest of the text: the same on every machine."""
    return hashlib.sha256(f"fold {text}".encode()).digest()[1] % folds


def coefficient_names(family: str) -> tuple[str, ...]:
    """Names of a family's physical coefficients, in order."""
    return tuple(prior_of(family))
