"""Intervals of ratios whose values come in clusters: turns of measuring share their moment, repeats their prompt."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from draftyard.nouns.report_part import Interval
from draftyard.rules.statistics import resample_indices

Figures: TypeAlias = "npt.NDArray[np.float64]"
# A standard error needs fewer resamples than the ends of a distribution.
ERROR_RESAMPLES = 600
# Sums of columns, shape [..., columns], to logarithms of the figure, shape [...].
LogFigure: TypeAlias = Callable[["Figures"], "Figures"]


def t_quantile(freedom: int, share: float = 0.975) -> float:
    """Quantile of Student's t, `share` in 0.5..1; exact below 3, then off by at most 0.2 %.

    Source: Abramowitz and Stegun 26.7.5.
    """
    if freedom < 1:
        raise ValueError("at least one degree of freedom")
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        middle = 2 * share - 1
        return middle * math.sqrt(2 / (1 - middle * middle))
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / math.pow(freedom, power) for power, term in enumerate(terms, 1))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A positive figure by its logarithm, the standard error of that, and how many clusters tell of the error."""

    log_value: float
    log_error: float
    clusters: int

    @property
    def value(self) -> float:
        """The figure itself."""
        return math.exp(self.log_value)

    def interval(self) -> Interval | None:
        """95 %: Student's t with clusters - 1 degrees of freedom; None where one cluster says nothing of the error."""
        if self.clusters < 2:
            return None
        reach = t_quantile(self.clusters - 1) * self.log_error
        return Interval(low=math.exp(min(self.log_value - reach, 700)), high=math.exp(min(self.log_value + reach, 700)))

    def draws(self, count: int, seed: int) -> "Figures":
        """Logarithms as they might have come out, shape [count]; all alike where the error is unknown."""
        if self.clusters < 2:
            return np.full(count, self.log_value)
        return self.log_value + self.log_error * np.random.default_rng(seed).standard_t(self.clusters - 1, count)


def estimate(
    rows: "Figures", clusterings: Sequence[Sequence[Hashable]], figure: LogFigure, seed: int
) -> Estimate | None:
    """The figure of the column sums of `rows` (shape [rows, columns]) with its error; None without rows.

    Each clustering gives a name to every row; the one with the largest error counts, its standard error that of a
    bootstrap of whole clusters (Efron 1979, Cameron, Gelbach and Miller 2008), widened by sqrt(n / (n - 1)).
    """
    if not len(rows):
        return None
    value = float(figure(rows.sum(axis=0)))
    found = [_error(rows, names, figure, seed) for names in clusterings]
    error, count = max(found, key=lambda one: (one[1] > 1, one[0] * (t_quantile(one[1] - 1) if one[1] > 1 else 0.0)))
    return Estimate(value, error, count)


def _error(rows: "Figures", names: Sequence[Hashable], figure: LogFigure, seed: int) -> tuple[float, int]:
    order = {name: index for index, name in enumerate(dict.fromkeys(names))}
    count = len(order)
    if count < 2:
        return 0.0, count
    sums = np.zeros((count, rows.shape[1]))
    np.add.at(sums, [order[name] for name in names], rows)
    draws = figure(sums[resample_indices(count, seed, ERROR_RESAMPLES)].sum(axis=1))
    return float(np.std(draws)) * math.sqrt(count / (count - 1)), count
