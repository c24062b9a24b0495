"""Corrections: shares of grid points, groups that are not known, and what the fit makes of a smooth surface."""

import math

import numpy as np
import pytest
from benchmarks.predict.fit_correction import Smoothness, learn
from hypothesis import given
from hypothesis import strategies as st

from draftyard.rules.predict.correction import Correction, grid_weights

KNOTS = ((0.0, 3.0, 6.0), (7.0, 11.0))
NUMBERS = st.floats(-5, 20)


@given(NUMBERS, NUMBERS)
def test_shares_sum_to_one_and_stay_on_the_grid(first: float, second: float) -> None:
    found = grid_weights(KNOTS, (first, second))
    assert sum(share for _, share in found) == pytest.approx(1.0)
    assert all(share > 0 and 0 <= index < 6 for index, share in found)


def test_a_point_of_the_grid_is_itself() -> None:
    assert grid_weights(KNOTS, (3.0, 11.0)) == ((3, 1.0),)
    assert grid_weights(KNOTS, (99.0, -99.0)) == ((4, 1.0),)


def test_groups_add_up_and_strangers_add_nothing() -> None:
    found = Correction(KNOTS, {"all": (0.1,) * 6, "one": (0.05,)})
    assert found.log_ratio(("all", "one", "stranger"), (1.0, 8.0)) == pytest.approx(0.15)
    assert found.factor(("stranger",), (1.0, 8.0)) == 1.0


def test_a_smooth_surface_is_learnt_and_an_outlier_is_not() -> None:
    generator = np.random.default_rng(0)
    places = [(float(b), float(length)) for b in range(7) for length in (7, 9, 11)] * 2
    groups = [("all", "a" if index % 2 else "b") for index in range(len(places))]
    truth = [0.02 * b + (0.1 if group[1] == "a" else -0.1) for (b, _), group in zip(places, groups, strict=True)]
    noisy = np.array(truth) + generator.normal(0, 0.005, len(truth))
    noisy[4] += 1.0
    smooth = Smoothness((0.1, 0.0), (0.1, 0.2), (3.0, 3.0), 0.02)
    found = learn(KNOTS, groups, places, noisy, smooth)
    errors = [abs(found.log_ratio(g, p) - t) for g, p, t in zip(groups, places, truth, strict=True)]
    assert max(errors) < 0.03
    assert len(found.surfaces["a"]) == 1
    assert len(found.surfaces["all"]) == 6


def test_a_difference_tells_nothing_of_the_level() -> None:
    """With an anchor a row says how much two places differ, as points of a speed-up curve do."""
    places, anchors = [(6.0, 7.0)], [(0.0, 7.0)]
    found = learn(KNOTS, [("all",)], places, np.array([0.3]), Smoothness((0.5,), (0.5,), (3.0, 3.0), 0.01), anchors)
    gained = found.log_ratio(("all",), (6.0, 7.0)) - found.log_ratio(("all",), (0.0, 7.0))
    assert gained == pytest.approx(0.3, abs=0.01)
    assert math.isfinite(found.log_ratio(("all",), (3.0, 9.0)))
