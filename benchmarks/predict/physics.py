"""The physical part of every family: which formula predicts it, and where the fit of its coefficients starts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.predict.cases import Case
from benchmarks.predict.fit_physics import Fitted, fit_positive
from draftyard.nouns.prediction import StepCoefficients, StepTerms
from draftyard.rules.predict.loaded_time import LoadCoefficients, first_token_ms, loaded_step_ms
from draftyard.rules.predict.memory_parts import MemoryCoefficients, peak_gb
from draftyard.rules.predict.step_time import step_ms

Vector = NDArray[np.float64]
STEP_NAMES = tuple(one.name for one in fields(StepCoefficients))
TERM_NAMES = tuple(one.name for one in fields(StepTerms))
MEMORY_NAMES = ("weights", "cache", "activation", "logits", "gb_tp1", "gb_tp2", "gb_tp4", "gb_tp8")
LOADED_NAMES = (*STEP_NAMES, "prefill", "queue")

# Where fits start, and how far a coefficient may go (standard deviation of its logarithm).
STEP_PRIOR: dict[str, tuple[float, float]] = {
    "weights": (1.15, 0.3),
    "compute": (1.5, 0.5),
    "compute_8bit": (1.6, 0.5),
    "expert": (1.8, 0.5),
    "cache": (1.1, 0.4),
    "attention": (2.0, 2.0),
    "activation": (1.0, 1.0),
    "reduce": (2.0, 0.7),
    "reduce_us": (6.0, 1.0),
    "hop_us": (1.5, 1.0),
    "slow_reduce_us": (15.0, 1.0),
    "slow_hop_us": (8.0, 1.0),
    "layer_us": (20.0, 1.0),
    "expert_layer_us": (10.0, 1.0),
    "step_us": (300.0, 1.5),
    "sequence_us": (5.0, 1.5),
    "sharpness": (1.4, 0.3),
}
LOADED_PRIOR = {**STEP_PRIOR, "prefill": (1.2, 0.5), "queue": (0.1, 1.5)}
MEMORY_PRIOR: dict[str, tuple[float, float]] = {
    "weights": (1.0, 0.05),
    "cache": (1.0, 0.05),
    "activation": (7.5, 1.0),
    "logits": (12.0, 1.0),
    "gb_tp1": (1.4, 1.0),
    "gb_tp2": (3.8, 1.0),
    "gb_tp4": (5.3, 1.0),
    "gb_tp8": (7.0, 1.0),
}


@dataclass(frozen=True)
class Stack:
    """The cases of one fit as arrays."""

    family: str
    batch: Vector
    share: Vector
    decode: StepTerms | None
    prefill: StepTerms | None
    parts: tuple[Vector, ...]


def stack(cases: Sequence[Case]) -> Stack:
    """Arrays over cases of one family; terms become one value whose fields are arrays."""
    parts: tuple[Vector, ...] = ()
    if cases[0].parts:
        parts = tuple(np.array([case.parts[i] for case in cases]) for i in range(len(cases[0].parts)))
    return Stack(
        family=cases[0].family,
        batch=np.array([case.batch for case in cases]),
        share=np.array([case.share for case in cases]),
        decode=_stacked([case.decode for case in cases]),
        prefill=_stacked([case.prefill for case in cases]),
        parts=parts,
    )


def _stacked(terms: Sequence[StepTerms | None]) -> StepTerms | None:
    known = [one for one in terms if one is not None]
    if len(known) != len(terms):
        return None
    # The formula uses plain arithmetic only, so that arrays stand for numbers.
    arrays: list[Any] = [np.array([getattr(one, name) for one in known]) for name in TERM_NAMES]
    return StepTerms(*arrays)


def prior_of(family: str) -> dict[str, tuple[float, float]]:
    """Start and spread of every coefficient of a family."""
    if family == "memory":
        return MEMORY_PRIOR
    return STEP_PRIOR if family in ("decode step", "TTFT") else LOADED_PRIOR


def physical(stacked: Stack, values: Vector) -> Vector:
    """Predictions of a family's formula with these coefficients, in the order of its prior."""
    if stacked.family == "memory":
        return _memory(stacked.parts, values)
    step = StepCoefficients(*(float(value) for value in values[: len(STEP_NAMES)]))
    if stacked.family == "decode step":
        assert stacked.decode is not None
        return np.asarray(step_ms(stacked.decode, step))
    assert stacked.prefill is not None
    if stacked.family == "TTFT":
        return np.asarray(step_ms(stacked.prefill, step))
    assert stacked.decode is not None
    fitted = LoadCoefficients(step, float(values[-2]), float(values[-1]))
    # Plain arithmetic, so that arrays stand for numbers.
    batch: Any = stacked.batch
    share: Any = stacked.share
    if stacked.family == "serving TTFT":
        return np.asarray(first_token_ms(stacked.decode, stacked.prefill, batch, fitted))
    token = np.asarray(loaded_step_ms(stacked.decode, stacked.prefill, share, fitted))
    return token if stacked.family == "serving TPOT" else 1e3 * stacked.batch / token


def _memory(parts: tuple[Vector, ...], values: Vector) -> Vector:
    """The sum of the parts; row by row, since the constant depends on tp."""
    fitted = MemoryCoefficients(
        weights=float(values[0]),
        cache=float(values[1]),
        activation=float(values[2]),
        logits=float(values[3]),
        constant_gb=(float(values[4]), float(values[5]), float(values[6]), float(values[7])),
    )
    return np.array([peak_gb(tuple(row), fitted) for row in zip(*parts, strict=True)])


def fit_physics(cases: Sequence[Case]) -> Fitted:
    """Coefficients of one fit from its cases."""
    prior = prior_of(cases[0].family)
    stacked = stack(cases)
    return fit_positive(
        lambda values: physical(stacked, values),
        np.array([case.measured for case in cases]),
        [start for start, _ in prior.values()],
        [spread for _, spread in prior.values()],
    )
