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
    level_of = {group: level for row in groups for level, group in enumerate(row)}
    full = int(np.prod([len(axis) for axis in knots]))
    bend = _grid_covariance(knots, smooth.lengths)
    sizes = {group: full if smooth.levels[level] > 0 else 1 for group, level in level_of.items()}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    design = np.zeros((len(groups), sum(sizes.values())))
    for index, (row, position) in enumerate(zip(groups, positions, strict=True)):
        anchor = anchors[index] if anchors else None
        for group in row:
            _add(design[index], starts[group], sizes[group], knots, position, 1.0)
            if anchor is not None:
                _add(design[index], starts[group], sizes[group], knots, anchor, -1.0)
    priors = []
    for group, level in level_of.items():
        block = smooth.levels[level] ** 2 * bend if sizes[group] > 1 else np.zeros((1, 1))
        priors.append(block + smooth.offsets[level] ** 2)
    spread = _times_blocks(design, priors)
    values = spread.T @ _weighted(spread @ design.T, log_ratios, smooth.noise, rounds)
    return Correction(
        knots,
        {group: tuple(np.round(values[start : start + sizes[group]], 3).tolist()) for group, start in starts.items()},
    )


def _add(
    row: Vector, start: int, size: int, knots: Sequence[Sequence[float]], position: Sequence[float], sign: float
) -> None:
    """A row's shares of the grid points of one group, or the whole of its constant."""
    if size == 1:
        row[start] += sign
        return
    for point, share in grid_weights(knots, position):
        row[start + point] += sign * share


def _times_blocks(design: Vector, blocks: Sequence[Vector]) -> Vector:
    """design x blockdiagonal(blocks)."""
    parts, start = [], 0
    for block in blocks:
        parts.append(design[:, start : start + len(block)] @ block)
        start += len(block)
    return np.concatenate(parts, axis=1)


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
