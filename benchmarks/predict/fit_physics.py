"""Fits a few positive coefficients to logarithms of measurements: damped least squares, blunt against outliers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_SCALE = 0.08  # a logarithm that is further off than this counts by its size, not by its square
_STEP = 1e-4
_LARGEST_MOVE = 0.7


@dataclass(frozen=True)
class Fitted:
    """Coefficients, and the standard deviation of each one's logarithm (about its relative error)."""

    values: Vector
    errors: Vector


def fit_positive(
    predict: Callable[[Vector], Vector],
    measured: Vector,
    start: Sequence[float],
    spread: Sequence[float],
    rounds: int = 40,
) -> Fitted:
    """Coefficients > 0 that bring `predict` near `measured`, both positive.

    `start` is also the prior; `spread` says how far a coefficient may leave it (standard deviation of its logarithm, 0:
    it stays). Levenberg-Marquardt on pseudo-Huber residuals; the priors weigh as much as a few rows.
    """
    origin = np.log(np.asarray(start, dtype=float))
    deviation = np.asarray(spread, dtype=float)
    free = np.flatnonzero(deviation > 0)
    target = np.log(measured)
    position = origin.copy()

    def residuals(x: Vector) -> Vector:
        raw = (np.log(predict(np.exp(x))) - target) / _SCALE
        blunt = np.sign(raw) * np.sqrt(2.0 * (np.sqrt(1.0 + raw**2) - 1.0))
        return np.concatenate([blunt, (x[free] - origin[free]) / deviation[free]])

    value = residuals(position)
    damping = 1e-2
    normal = np.eye(len(free))
    for _ in range(rounds):
        jacobian = np.stack([(residuals(_moved(position, one)) - value) / _STEP for one in free], axis=1)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ value
        for _ in range(8):
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -slope)
            trial = position.copy()
            trial[free] += np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
            tried = residuals(trial)
            if tried @ tried < value @ value:
                break
            damping *= 4.0
        else:
            break
        gained = value @ value - tried @ tried
        position, value, damping = trial, tried, max(damping / 5.0, 1e-9)
        if gained < 1e-6 * (value @ value):
            break
    errors = np.zeros(len(position))
    errors[free] = np.sqrt(np.diag(np.linalg.inv(normal)))
    return Fitted(np.exp(position), errors)


def _moved(position: Vector, index: np.intp) -> Vector:
    moved = position.copy()
    moved[index] += _STEP
    return moved
