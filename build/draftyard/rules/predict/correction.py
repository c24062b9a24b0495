"""A smooth correction learnt from like measurements: what the physics leaves, by group, over logarithms of the load."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Correction:
    """Sums of piecewise linear surfaces, one for each group that a configuration belongs to.

    `knots` are the grid values on each axis (base-2 logarithms of the load's numbers). `surfaces` maps a group such as
    `model=Llama-3-70B/FP8` to one value per grid point, last axis fastest, or to one value
    for all; a group that was never measured adds nothing. Values are natural logarithms of measured / physics.
    """

    knots: tuple[tuple[float, ...], ...]
    surfaces: Mapping[str, tuple[float, ...]]

    def log_ratio(self, groups: Sequence[str], position: Sequence[float]) -> float:
        """What to add to the logarithm of the physical prediction."""
        weights = grid_weights(self.knots, position)
        total = 0.0
        for group in groups:
            surface = self.surfaces.get(group)
            if surface is not None and len(surface) == 1:
                total += surface[0]
            elif surface is not None:
                total += sum(surface[index] * weight for index, weight in weights)
        return total

    def factor(self, groups: Sequence[str], position: Sequence[float]) -> float:
        """What to multiply the physical prediction with."""
        return math.exp(self.log_ratio(groups, position))


NOTHING = Correction((), {})


def grid_weights(knots: Sequence[Sequence[float]], position: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """The grid points around a position and their shares, which sum to 1; outside the grid its edge counts."""
    found: list[tuple[int, float]] = [(0, 1.0)]
    for axis, value in zip(knots, position, strict=True):
        low, share = _bracket(axis, value)
        found = [
            (index * len(axis) + low + side, weight * part)
            for index, weight in found
            for side, part in ((0, 1.0 - share), (1, share))
            if part > 0.0
        ]
    return tuple(found)


def _bracket(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The knot below a value, and how far the value is on the way to the next one."""
    if value <= axis[0] or len(axis) == 1:
        return 0, 0.0
    for index in range(len(axis) - 1):
        if value < axis[index + 1]:
            return index, (value - axis[index]) / (axis[index + 1] - axis[index])
    return len(axis) - 1, 0.0
