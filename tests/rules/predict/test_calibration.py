"""Calibration: finds what was changed, narrows intervals, says what it rests on, and survives being stored."""

import random
from dataclasses import replace

import pytest
from tests.fakes.forecast_cases import LLAMA_1B, LLAMA_8B, LLAMA_70B, circumstances

from draftyard.nouns.calibration import CalibrationEntry, CalibrationFile
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.rules.predict.calibrated_lane import calibrated_lane, entry_of
from draftyard.rules.predict.lane_calibration import (
    FACTORS,
    Calibrated,
    Observation,
    Quantity,
    applied,
    calibrate,
    predicted,
)
from draftyard.rules.predict.load_forecast import Situation
from draftyard.rules.predict.variant_case import variant_case

TRUE = [0.1, -0.1, 0.1, 0.5, 0.3, 0.2, 0.1, 0.1, 0.2, 0.1, 0.3, -0.2, 0.1]


def situations() -> tuple[Situation, ...]:
    large = circumstances(LLAMA_70B, Gpu.H200_SXM, Precision.FP8, 1, kind=SpeculatorKind.DRAFT_TARGET, draft=LLAMA_1B)
    small = circumstances(LLAMA_8B, Gpu.H200_SXM, Precision.FP8, 1, kind=SpeculatorKind.NGRAM)
    return variant_case(large).at, variant_case(small).at


def sweep(noise: float = 0.02, spoil: int | None = None) -> list[Observation]:
    generator = random.Random(1)
    at = situations()
    true = applied(at[0].lane, TRUE)
    found = []
    for where in at:
        for load in (1, 2, 4, 8, 16, 32):
            for quantity in Quantity:
                one = Observation(quantity, where, load, 64, 1.0)
                factor = 1.0 + generator.gauss(0, noise)
                found.append(replace(one, measured=predicted(one, true) * factor))
    if spoil is not None:
        found[spoil] = replace(found[spoil], measured=found[spoil].measured * 4)
    return found


def median_error(observations: list[Observation], fitted: Calibrated | None) -> float:
    lane = observations[0].at.lane if fitted is None else fitted.lane
    errors = sorted(abs(predicted(one, lane) / one.measured - 1.0) for one in observations)
    return errors[len(errors) // 2]


def test_a_sweep_is_found_again() -> None:
    """18 of 36 points fitted; the others were 10 % off before and are within the noise after."""
    points = sweep()
    fitted = calibrate(points[0].at.lane, points[::2])
    assert median_error(points[1::2], None) > 0.07
    assert median_error(points[1::2], fitted) < 0.025
    assert set(fitted.errors) == {factor.name for factor in FACTORS}
    assert fitted.errors["weights"] < 0.1
    before = points[0].at.lane.bounds.token
    after = fitted.lane.bounds.token
    assert after[1] - after[0] < 0.5 * (before[1] - before[0])


def test_one_wild_point_moves_little() -> None:
    fitted = calibrate(sweep()[0].at.lane, sweep(spoil=6)[::2])
    assert median_error(sweep()[1::2], fitted) < 0.04


def test_few_points_are_refused() -> None:
    points = sweep()
    with pytest.raises(ValueError, match="too few"):
        calibrate(points[0].at.lane, points[:3])


def stored(models: tuple[str, ...]) -> CalibrationEntry:
    points = sweep()
    entry = entry_of(calibrate(points[0].at.lane, points), "2026-01-01T00:00:00+00:00", "sweep a.csv", models)
    text = CalibrationFile(entries={"key": entry}).model_dump_json()
    return CalibrationFile.model_validate_json(text).entries["key"]


def test_what_was_stored_predicts_the_same() -> None:
    points = sweep()
    fitted = calibrate(points[0].at.lane, points)
    lane = calibrated_lane(points[0].at.lane, stored(("one", "two")), "one")
    for point in points:
        assert predicted(point, lane) == pytest.approx(predicted(point, fitted.lane), rel=1e-6)
    assert lane.calibrated
    assert "2 models" in lane.source
    assert "one size" not in lane.source


def test_one_size_says_so_and_strangers_get_wider_intervals() -> None:
    entry, before = stored(("one",)), situations()[0].lane
    known, strange = calibrated_lane(before, entry, "one"), calibrated_lane(before, entry, "two")
    assert "one size only" in known.source
    assert strange.bounds.token[1] == pytest.approx(3 * known.bounds.token[1])


def test_kinds_that_were_not_measured_keep_their_interval() -> None:
    points = [point for point in sweep() if point.quantity is Quantity.TOKEN]
    lane = points[0].at.lane
    entry = entry_of(calibrate(lane, points), "now", "sweep", ("one",))
    after = calibrated_lane(lane, entry, "one")
    assert after.bounds.speedup == lane.bounds.speedup
    assert after.bounds.first_token == lane.bounds.first_token
