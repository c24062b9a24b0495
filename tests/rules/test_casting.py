"""Casts agree with numpy, and with torch for bfloat16, bit for bit; overflows are counted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.nouns.tensor import TensorType
from draftyard.rules import casting
from draftyard.rules.casting import Losses, cast

TORCH = {TensorType.F32: torch.float32, TensorType.F16: torch.float16, TensorType.BF16: torch.bfloat16}


def data_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def bits_of(tensor: torch.Tensor) -> bytes:
    return bytes(data_of(tensor))


@pytest.mark.parametrize("target", list(TORCH))
@pytest.mark.parametrize("source", list(TORCH))
@settings(max_examples=20, deadline=None)
@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False) | st.floats(-(2.0**-13), 2.0**-13, width=32) | st.floats(-1, 1, width=32),
        min_size=1,
        max_size=30,
    )
)
def test_casts_equal_torchs(source: TensorType, target: TensorType, values: list[float]) -> None:
    stored = torch.tensor(values, dtype=torch.float32).to(TORCH[source])
    wanted = stored.to(TORCH[target])
    result = cast(data_of(stored), (len(values),), source, target)
    assert result.values.tobytes() == bits_of(wanted)
    assert result.losses == Losses(
        not_finite=int((~torch.isfinite(stored)).sum()),
        overflows=int((torch.isinf(wanted) & torch.isfinite(stored)).sum()),
        vanished=int(((stored != 0) & (wanted == 0)).sum()),
    )


@pytest.mark.parametrize("source", [TensorType.F16, TensorType.BF16])
@pytest.mark.parametrize("target", list(TORCH))
def test_every_value_of_a_narrow_type(source: TensorType, target: TensorType) -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(TORCH[source])
    wanted = every.to(TORCH[target])
    result = cast(data_of(every), (1 << 16,), source, target)
    numbers = ~torch.isnan(every)
    found = torch.from_numpy(np.frombuffer(result.values.tobytes(), np.uint8).copy()).view(TORCH[target])
    assert torch.equal(found[numbers], wanted[numbers])
    assert torch.isnan(found[~numbers]).all()
    assert result.losses.not_finite == int((~torch.isfinite(every)).sum())


def test_ties_go_to_even() -> None:
    upper = np.arange(0x3F80, 0x3F88, dtype=np.uint32) << 16
    bits = (upper[:, None] + np.array([0x7FFF, 0x8000, 0x8001], dtype=np.uint32)).ravel()
    values = torch.from_numpy(bits.view(np.float32))
    result = cast(data_of(values), (24,), TensorType.F32, TensorType.BF16)
    assert result.values.tobytes() == bits_of(values.bfloat16())


@pytest.mark.parametrize("target", list(TORCH))
def test_not_a_number_stays_so(target: TensorType) -> None:
    nans = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800001], dtype=np.uint32)
    result = cast(memoryview(nans.tobytes()), (4,), TensorType.F32, target)
    back = torch.frombuffer(bytearray(result.values.tobytes()), dtype=TORCH[target])
    assert torch.isnan(back).all()
    assert result.losses == Losses(not_finite=4)


def test_the_largest_numbers() -> None:
    values = torch.tensor([65504.0, 65519.0, 65520.0, -70000.0, float("inf")])
    assert cast(data_of(values), (5,), TensorType.F32, TensorType.F16).overflows == 2
    wide = torch.tensor([70000.0], dtype=torch.bfloat16)
    assert cast(data_of(wide), (1,), TensorType.BF16, TensorType.F16).overflows == 1
    huge = torch.tensor([3.4028235e38])
    assert cast(data_of(huge), (1,), TensorType.F32, TensorType.BF16).overflows == 1


def test_pieces_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casting, "_PIECE", 3)
    values = torch.arange(20, dtype=torch.float32).reshape(4, 5) * 10000
    result = cast(data_of(values), (4, 5), TensorType.F32, TensorType.F16)
    assert result.values.shape == (4, 5)
    assert result.values.tobytes() == bits_of(values.half())
    assert result.overflows == 13


@pytest.mark.parametrize("target", [TensorType.F16, TensorType.BF16])
def test_the_borders_between_small_and_normal_numbers(target: TensorType) -> None:
    """Each power of two from the smallest float32 to the largest, its neighbours and the ties beside it."""
    powers = (np.arange(0, 255, dtype=np.uint32) << 23)[:, None]
    around = np.concatenate([np.arange(-3, 4), [0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, -0x1000, -0x8000]])
    values = torch.from_numpy(
        (powers.astype(np.int64) + around).clip(0, 0x7F7FFFFF).astype(np.uint32).ravel().view(np.float32)
    )
    values = torch.cat([values, -values])
    result = cast(data_of(values), tuple(values.shape), TensorType.F32, target)
    assert result.values.tobytes() == bits_of(values.to(TORCH[target]))


def test_a_result_may_go_where_one_wants() -> None:
    out = np.zeros(6, dtype=np.float16)
    values = torch.arange(4, dtype=torch.bfloat16)
    result = cast(data_of(values), (2, 2), TensorType.BF16, TensorType.F16, out)
    assert np.shares_memory(result.values, out)
    np.testing.assert_array_equal(out, [0, 1, 2, 3, 0, 0])


def test_the_same_type_is_not_copied() -> None:
    data = memoryview(np.arange(4, dtype=np.float32).tobytes())
    result = cast(data, (2, 2), TensorType.F32, TensorType.F32)
    assert np.shares_memory(result.values, np.frombuffer(data, np.float32))


def test_whole_numbers_pass_as_they_are():
    table = np.arange(-3, 5, dtype=np.int64)
    found = cast(memoryview(table.tobytes()), (2, 4), TensorType.I64, TensorType.I64)
    assert found.values.tolist() == table.reshape(2, 4).tolist()
    assert found.losses == Losses()
