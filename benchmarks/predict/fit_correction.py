"""Learns the smooth corrections: a Gaussian process on the grid of each group, blunt against outliers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftyard.rules.predict.correction import Correction, grid_weights

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Smoothness:
    """How a correction may bend: standard deviation of each level of groups and of what is left, and the lengths.

    `lengths` are in octaves, one for each axis. `levels` and `offsets` have one entry for each level of groups: how
    large its surface is, and how large a constant of the same group is.
    """

    levels: tuple[float, ...]
    offsets: tuple[float, ...]
    lengths: tuple[float, ...]
    noise: float


def learn(
    knots: tuple[tuple[float, ...], ...],
    groups: Sequence[Sequence[str]],
    positions: Sequence[Sequence[float]],
    log_ratios: Vector,
    smooth: Smoothness,
    anchors: Sequence[Sequence[float] | None] = (),
    rounds: int = 4,
) -> Correction:
    """The correction that explains `log_ratios` (natural logarithm of measured / physics) best under the prior.

    Row i belongs to `groups[i]`, one for each level; with an anchor it tells the difference between its position and
    the anchor's alone. Least squares with priors, reweighted so that a row that is far off counts less (Student's t
    with four degrees of freedom). Levels whose surface may not bend are stored as one number.
    """
    shares = _shares(knots, positions)
    free = np.ones(len(groups))
    for index, anchor in enumerate(anchors):
        if anchor is not None:
            shares[index] -= _shares(knots, [anchor])[0]
            free[index] = 0.0
    bend = _grid_covariance(knots, smooth.lengths)
    surface, constant = shares @ bend @ shares.T, np.outer(free, free)
    kernel = np.zeros_like(surface)
    for level, (size, offset) in enumerate(zip(smooth.levels, smooth.offsets, strict=True)):
        codes = np.unique([row[level] for row in groups], return_inverse=True)[1]
        kernel += (codes[:, None] == codes[None, :]) * (size**2 * surface + offset**2 * constant)
    found = _weighted(kernel, log_ratios, smooth.noise, rounds)
    return Correction(knots, _surfaces(groups, shares, free, found, bend, smooth))


def _surfaces(
    groups: Sequence[Sequence[str]], shares: Vector, free: Vector, found: Vector, bend: Vector, smooth: Smoothness
) -> dict[str, tuple[float, ...]]:
    """Grid values of every group from the dual weights; one number where the level may not bend."""
    surfaces: dict[str, tuple[float, ...]] = {}
    for level, (size, offset) in enumerate(zip(smooth.levels, smooth.offsets, strict=True)):
        members: dict[str, list[int]] = {}
        for index, row in enumerate(groups):
            members.setdefault(row[level], []).append(index)
        for group, rows in members.items():
            constant = offset**2 * float(free[rows] @ found[rows])
            bent = size**2 * (bend @ (shares[rows].T @ found[rows])) if size > 0 else np.zeros(1)
            surfaces[group] = tuple(np.round(bent + constant, 3).tolist())
    return surfaces


def _shares(knots: tuple[tuple[float, ...], ...], positions: Sequence[Sequence[float]]) -> Vector:
    """Row i: the share of every grid point at position i."""
    found = np.zeros((len(positions), int(np.prod([len(axis) for axis in knots]))))
    for index, position in enumerate(positions):
        for point, share in grid_weights(knots, position):
            found[index, point] = share
    return found


def _grid_covariance(knots: tuple[tuple[float, ...], ...], lengths: Sequence[float]) -> Vector:
    """Covariance of the grid points: a product of Gaussians of the distance on each axis."""
    total = np.ones((1, 1))
    for axis, length in zip(knots, lengths, strict=True):
        points = np.asarray(axis)
        total = np.kron(total, np.exp(-(((points[:, None] - points[None, :]) / length) ** 2) / 2.0))
    return total


def _weighted(kernel: Vector, target: Vector, noise: float, rounds: int) -> Vector:
    """Dual weights (K + noise / w)^-1 y, with w from Student's t: rows far off count less."""
    variance = np.full(len(target), noise**2)
    found = np.zeros(len(target))
    for _ in range(rounds):
        found = np.linalg.solve(kernel + np.diag(variance), target)
        left = (target - kernel @ found) / noise
        variance = noise**2 * (4.0 + left**2) / 5.0
    return found
