"""Casts agree with numpy, and with torch for bfloat16, bit for bit; overflows are counted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.nouns.tensor import TensorType
from draftyard.rules import casting
from draftyard.rules.casting import cast

TORCH = {TensorType.F32: torch.float32, TensorType.F16: torch.float16, TensorType.BF16: torch.bfloat16}


def data_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def bits_of(tensor: torch.Tensor) -> bytes:
    return bytes(data_of(tensor))


@pytest.mark.parametrize("target", list(TORCH))
@pytest.mark.parametrize("source", list(TORCH))
@settings(max_examples=20, deadline=None)
@given(values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=30))
def test_casts_equal_torchs(source: TensorType, target: TensorType, values: list[float]) -> None:
    stored = torch.tensor(values, dtype=torch.float32).to(TORCH[source])
    wanted = stored.to(TORCH[target])
    result = cast(data_of(stored), (len(values),), source, target)
    assert result.values.tobytes() == bits_of(wanted)
    assert result.overflows == int((torch.isinf(wanted) & ~torch.isinf(stored)).sum())


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
    assert result.overflows == 0


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


def test_the_same_type_is_not_copied() -> None:
    data = memoryview(np.arange(4, dtype=np.float32).tobytes())
    result = cast(data, (2, 2), TensorType.F32, TensorType.F32)
    assert np.shares_memory(result.values, np.frombuffer(data, np.float32))
