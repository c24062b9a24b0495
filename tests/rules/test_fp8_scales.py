"""From the largest magnitudes of a calibration to scales, and everything that has none."""

from dataclasses import replace

import numpy as np
import pytest

from draftyard.nouns.activation_ranges import ActivationRanges
from draftyard.nouns.errors import Failure
from draftyard.nouns.recipe import KvScale, UncalibratedExperts
from draftyard.rules.fp8_scales import activation_scale, kv_notes, kv_scale, ranges_json, ranges_of, scale_of

FAIL, SIBLINGS = UncalibratedExperts.FAIL, UncalibratedExperts.SIBLING_MAX
RANGES = ActivationRanges(
    samples=4,
    tokens=80,
    inputs={"a": (3.5,), "zero": (0.0,), "none": (None,), "nan": (float("nan"),)},
    keys=(0.5, 900.0),
    values=(0.25, 3.0),
)


def experts(*values: float | None) -> ActivationRanges:
    return replace(RANGES, inputs={"moe": values})


def test_a_scale_is_the_largest_magnitude_over_448_in_float32() -> None:
    assert scale_of(np.float32(3.4590), "w") == np.float32(3.4590) / np.float32(448)
    assert activation_scale(RANGES, "a", FAIL).value == np.float32(3.5) / np.float32(448)


@pytest.mark.parametrize("amax", [0.0, np.nan, np.inf])
def test_a_tensor_without_a_scale_is_named(amax: float) -> None:
    with pytest.raises(Failure, match=r"model\.layers\.0\.self_attn"):
        scale_of(np.float32(amax), "model.layers.0.self_attn")


@pytest.mark.parametrize("module", ["zero", "none", "nan", "missing"])
@pytest.mark.parametrize("option", [FAIL, SIBLINGS])
def test_a_module_without_a_range_is_named(module: str, option: UncalibratedExperts) -> None:
    with pytest.raises(Failure, match=module):
        activation_scale(RANGES, module, option)


def test_uncalibrated_experts_fail_and_are_listed() -> None:
    """Row 106."""
    with pytest.raises(Failure, match=r"experts 6, 7 of moe"):
        activation_scale(experts(1, 2, 3, 4, 5, 4, 0.0, None), "moe", FAIL)


def test_uncalibrated_experts_borrow_when_asked() -> None:
    scale = activation_scale(experts(1, 2, 3, 4, 5, 4, 0.0, None), "moe", SIBLINGS)
    assert (scale.value, scale.borrowed) == (np.float32(5) / np.float32(448), (6, 7))
    with pytest.raises(Failure, match="0, 1"):
        activation_scale(experts(None, None), "moe", SIBLINGS)


@pytest.mark.parametrize("option", [FAIL, SIBLINGS])
def test_nan_never_passes(option: UncalibratedExperts) -> None:
    with pytest.raises(Failure, match=r"experts 3\) was no finite number"):
        activation_scale(experts(1, 2, 3, float("nan"), 5, 4, 0.0, None), "moe", option)


def test_kv_scales_are_never_below_one() -> None:
    assert kv_scale(RANGES, 0, KvScale.MEASURED) == 1
    assert kv_scale(RANGES, 1, KvScale.MEASURED) == np.float32(900) / np.float32(448)
    assert kv_scale(RANGES, 1, KvScale.UNIT) == 1


def test_missing_kv_scales_fail_unless_one_is_asked_for() -> None:
    """Row 115."""
    with pytest.raises(Failure, match="keys and values of layer 0"):
        kv_scale(replace(RANGES, keys=(), values=()), 0, KvScale.MEASURED)
    assert kv_scale(replace(RANGES, keys=(), values=()), 0, KvScale.UNIT) == 1


def test_the_distribution_is_told_and_all_ones_warned_about() -> None:
    """Row 101."""
    ones = kv_notes(RANGES, [np.float32(1)] * 2, KvScale.MEASURED)
    assert "1 to 1, median 1" in ones[0]
    assert "warning" in ones[1] and "keys up to 900" in ones[1]
    assert len(kv_notes(RANGES, [np.float32(1), np.float32(2)], KvScale.MEASURED)) == 1
    assert "because kv_scale is unit" in kv_notes(None, [np.float32(1)] * 2, KvScale.UNIT)[1]


def test_ranges_come_back_from_their_file() -> None:
    ranges = replace(RANGES, inputs={"a": (3.5,), "moe": (1.0, None)})
    assert ranges_of(ranges_json(ranges)) == ranges


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format 2"),
        ({"inputs": []}, "inputs"),
        ({"inputs": {"a": 1.0}}, "a are"),
        ({"tokens": "80"}, "tokens"),
        ({"keys": [None]}, "keys"),
    ],
)
def test_a_file_of_another_kind_is_refused(change: dict[str, object], words: str) -> None:
    """Row 112."""
    with pytest.raises(Failure, match=words):
        ranges_of({**ranges_json(replace(RANGES, inputs={})), **change})
