"""The own cast to E4M3 against torch's, bit by bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from draftyard.nouns.tensor import TensorType
from draftyard.rules.float8 import Quantiser, from_e4m3, largest_magnitude, nan_bytes, to_e4m3

EVERY = np.arange(1 << 16, dtype=np.uint16)


def torch_codes(values: np.ndarray) -> np.ndarray:
    clamped = torch.from_numpy(values.copy()).clamp(-448, 448)
    return clamped.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def same(codes: np.ndarray, values: np.ndarray) -> None:
    expected, number = torch_codes(values), ~np.isnan(values)
    np.testing.assert_array_equal(codes[number], expected[number])
    assert set(codes[~number].tolist()) <= {0x7F, 0xFF}


def test_every_float16() -> None:
    values = EVERY.view(np.float16).astype(np.float32)
    same(to_e4m3(values), values)


def test_every_bfloat16() -> None:
    values = (EVERY.astype(np.uint32) << 16).view(np.float32)
    same(to_e4m3(values), values)


@given(arrays(np.uint32, st.integers(0, 300), elements=st.integers(0, 2**32 - 1)))
def test_any_float32(bits: np.ndarray) -> None:
    same(to_e4m3(bits.view(np.float32)), bits.view(np.float32))


def test_float32_around_every_boundary() -> None:
    """The E4M3 values, the middles between neighbours, and the floats just beside both."""
    codes = from_e4m3(np.arange(127, dtype=np.uint8))
    points = np.concatenate([codes, (codes[:-1] + codes[1:]) / 2])
    near = np.concatenate([np.nextafter(points, np.float32(-1)), points, np.nextafter(points, np.float32(1e9))])
    same(to_e4m3(near), near)
    same(to_e4m3(-near), -near)


def test_every_byte_comes_back() -> None:
    codes = np.arange(256, dtype=np.uint8)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(from_e4m3(codes), values)
    numbers = codes[~np.isnan(values)]
    np.testing.assert_array_equal(to_e4m3(from_e4m3(numbers)), numbers)


def test_values_beyond_the_largest_saturate() -> None:
    values = np.array([447, 448, 460, 600, 1e6, np.inf, -1e6, -np.inf], dtype=np.float32)
    assert to_e4m3(values).tolist() == [0x7E] * 6 + [0xFE] * 2
    assert nan_bytes(to_e4m3(values)) == 0


def test_bytes_that_are_no_number_are_counted() -> None:
    assert nan_bytes(np.array([[0x7F, 0x7E], [0xFF, 0x80]], dtype=np.uint8)) == 2


@pytest.mark.parametrize("kind", [TensorType.F16, TensorType.BF16, TensorType.F32])
@given(data=st.data())
def test_quantising_is_division_and_cast(kind: TensorType, data: st.DataObject) -> None:
    scale = np.float32(data.draw(st.floats(2.0**-20, 8.0, width=32)))
    bits = data.draw(arrays(np.uint16, (3, 7), elements=st.integers(0, 2**16 - 1)))
    if kind is TensorType.F16:
        stored: np.ndarray = bits.view(np.float16)
        values = stored.astype(np.float32)
    else:
        values = (bits.astype(np.uint32) << 16).view(np.float32)
        stored = bits if kind is TensorType.BF16 else values
    with np.errstate(over="ignore"):
        same(Quantiser(kind, scale)(stored), values / scale)


def test_the_largest_magnitude_is_exact() -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal(5000, dtype=np.float32)
    assert largest_magnitude(values, TensorType.F32) == np.abs(values).max()
    half = values.astype(np.float16)
    assert largest_magnitude(half, TensorType.F16) == np.abs(half).max()
    brain = torch.from_numpy(values).bfloat16()
    stored = brain.view(torch.int16).numpy().view(np.uint16)
    assert largest_magnitude(stored, TensorType.BF16) == brain.abs().max().item()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_finite_number_is_not_lost(bad: float) -> None:
    values = np.array([1, bad, 2], dtype=np.float32)
    assert not np.isfinite(largest_magnitude(values, TensorType.F32))
    assert not np.isfinite(largest_magnitude(values.astype(np.float16), TensorType.F16))
    stored = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert not np.isfinite(largest_magnitude(stored, TensorType.BF16))


def test_a_new_scale_is_dequantising_and_quantising() -> None:
    codes = np.delete(np.arange(256, dtype=np.uint8), [0x7F, 0xFF])
    old, new = np.float32(0.013), np.float32(0.021)
    expected = torch_codes(from_e4m3(codes) * old / new)
    requantise, keep = Quantiser(TensorType.F8_E4M3, new, old), Quantiser(TensorType.F8_E4M3, old, old)
    np.testing.assert_array_equal(requantise(codes), expected)
    np.testing.assert_array_equal(keep(np.arange(256, dtype=np.uint8)), np.arange(256))
    with pytest.raises(ValueError, match="have a scale"):
        Quantiser(TensorType.F8_E4M3, new)
