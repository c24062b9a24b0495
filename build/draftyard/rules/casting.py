"""Turns stored weights into another floating-point type and counts what does not fit."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftyard.nouns.tensor import TensorType

# numpy has no bfloat16: it travels as 16-bit words, the upper half of a float32.
STORAGE: dict[TensorType, type[np.generic]] = {
    TensorType.F32: np.float32,
    TensorType.F16: np.float16,
    TensorType.BF16: np.uint16,
}
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class CastTensor:
    """Values in the storage of the new type, and how many finite ones became infinite."""

    values: NDArray[np.generic]
    overflows: int


def cast(data: memoryview, shape: tuple[int, ...], source: TensorType, target: TensorType) -> CastTensor:
    """Little-endian bytes of a tensor as an array of `shape` in the storage of `target`; no copy when types are equal.

    Rounds to nearest, ties to even. Works in pieces, so that a large tensor needs little more than its result.
    """
    stored = np.frombuffer(data, dtype=STORAGE[source])
    if source is target:
        return CastTensor(stored.reshape(shape), 0)
    values = np.empty(stored.shape, dtype=STORAGE[target])
    overflows = 0
    for at in range(0, stored.size, _PIECE):
        piece = slice(at, at + _PIECE)
        exact = _to_float32(stored[piece], source)
        values[piece] = _from_float32(exact, target)
        infinite = _infinite(values[piece], target)
        if infinite.any():
            overflows += int(np.count_nonzero(infinite & np.isfinite(exact)))
    return CastTensor(values.reshape(shape), overflows)


def _to_float32(stored: NDArray[np.generic], source: TensorType) -> NDArray[np.float32]:
    if source is TensorType.BF16:
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32)


def _from_float32(exact: NDArray[np.float32], target: TensorType) -> NDArray[np.generic]:
    if target is not TensorType.BF16:
        with np.errstate(over="ignore"):
            return exact.astype(STORAGE[target])
    bits = exact.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding could carry a NaN over into the sign; keep it a (quiet) NaN instead.
    return np.where(np.isnan(exact), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def _infinite(values: NDArray[np.generic], target: TensorType) -> NDArray[np.bool_]:
    if target is TensorType.BF16:
        return np.asarray((values.view(np.uint16) & np.uint16(0x7FFF)) == np.uint16(0x7F80))
    return np.isinf(values.astype(np.float32) if target is TensorType.F32 else values.view(np.float16))
