"""Turns stored weights into another floating-point type and counts what does not fit."""

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftyard.nouns.tensor import TensorType

Bits: TypeAlias = NDArray[np.uint32] | NDArray[np.uint16]

# numpy has no bfloat16: it travels as 16-bit words, the upper half of a float32; FP8 travels as bytes.
STORAGE: dict[TensorType, type[np.generic]] = {
    TensorType.F32: np.float32,
    TensorType.F16: np.float16,
    TensorType.BF16: np.uint16,
    TensorType.I64: np.int64,
    TensorType.F8_E4M3: np.uint8,
}
# Elements at once: few enough for the processor's cache, many enough that threads seldom wait for the interpreter.
_PIECE = 1 << 19
_EXPONENT = {TensorType.F32: 0x7F800000, TensorType.F16: 0x7C00, TensorType.BF16: 0x7F80}
_MAGNITUDE = {TensorType.F32: 0x7FFFFFFF, TensorType.F16: 0x7FFF, TensorType.BF16: 0x7FFF}


@dataclass(frozen=True, slots=True)
class Losses:
    """Of the source: values that are no finite numbers. Of the cast: finite ones made infinite, others made zero."""

    not_finite: int = 0
    overflows: int = 0
    vanished: int = 0

    def __add__(self, other: "Losses") -> "Losses":
        return Losses(
            self.not_finite + other.not_finite, self.overflows + other.overflows, self.vanished + other.vanished
        )


class Scratch:
    """Memory for what is made on the way, used again for every piece: fresh memory would cost more than the work."""

    def __init__(self) -> None:
        self._words = [np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.uint8)]
        self._flags = np.empty(0, dtype=np.bool_)

    def words(self, index: int, like: Bits) -> Bits:
        """Room of the size and the type of `like`; there are two."""
        if self._words[index].nbytes < like.nbytes:
            self._words[index] = np.empty(like.nbytes, dtype=np.uint8)
        return _view(self._words[index][: like.nbytes], like.dtype.itemsize)

    def flags(self, count: int) -> NDArray[np.bool_]:
        """Room for a yes or no to each element."""
        if self._flags.size < count:
            self._flags = np.empty(count, dtype=np.bool_)
        return self._flags[:count]


@dataclass(frozen=True, slots=True)
class CastTensor:
    """Values in the storage of the new type, and what was lost."""

    values: NDArray[np.generic]
    losses: Losses

    @property
    def overflows(self) -> int:
        """Finite values that became infinite."""
        return self.losses.overflows


def cast(
    data: memoryview,
    shape: tuple[int, ...],
    source: TensorType,
    target: TensorType,
    out: NDArray[np.generic] | None = None,
    scratch: Scratch | None = None,
) -> CastTensor:
    """Little-endian bytes of a tensor as an array of `shape` in the storage of `target`; no copy when types are equal.

    Rounds to nearest, ties to even; subnormal numbers are kept. Works in pieces, so that a large tensor needs little
    more than its result, which goes to the first elements of `out` (flat, in the storage of `target`) when given. Who
    casts much in pieces keeps a `scratch`, one for each thread.
    """
    stored, scratch = np.frombuffer(data, dtype=STORAGE[source]), scratch or Scratch()
    losses = Losses()
    if source is target:
        # Whole numbers, such as a map of a vocabulary, have nothing to lose.
        for at in range(0, stored.size if source in _MAGNITUDE else 0, _PIECE):
            losses += _scan(_bits(stored[at : at + _PIECE]), source, scratch)
        return CastTensor(stored.reshape(shape), losses)
    values = np.empty(stored.shape, dtype=STORAGE[target]) if out is None else out[: stored.size]
    for at in range(0, stored.size, _PIECE):
        piece = slice(at, at + _PIECE)
        losses += _cast_piece(stored[piece], values[piece], source, target, scratch)
    return CastTensor(values.reshape(shape), losses)


def _cast_piece(
    stored: NDArray[np.generic],
    values: NDArray[np.generic],
    source: TensorType,
    target: TensorType,
    scratch: Scratch,
) -> Losses:
    bits, result = _bits(stored), _bits(values)
    if target is TensorType.F32:
        if source is TensorType.BF16:
            np.left_shift(bits, 16, out=result, dtype=np.uint32)
        else:
            values[...] = stored
        return _scan(bits, source, scratch)
    if source is TensorType.F16:
        # Every half has a place in bfloat16's range, rounded; 65536 of them are looked up.
        np.take(_narrowed(TensorType.F16, target), bits.view(np.uint16), out=result.view(np.uint16), mode="clip")
        return _scan(bits, source, scratch)
    strange = (
        _shift_exponents(bits, result, scratch)
        if source is TensorType.BF16
        else _round_bits(bits, result, target, scratch)
    )
    places = np.flatnonzero(strange)
    if places.size == 0:
        return Losses()
    chosen = stored[places]
    if source is TensorType.BF16 and not _lossy(target)[chosen].any():
        result[places] = _narrowed(TensorType.BF16, target)[chosen]
        return Losses()
    exact = _widened(chosen, source)
    narrow = _narrow(exact, target)
    result[places] = _bits(narrow)
    return _losses(exact, _widened(narrow, target))


def _shift_exponents(bits: Bits, result: Bits, scratch: Scratch) -> NDArray[np.bool_]:
    """bfloat16 to half where both are normal: the exponent's bias falls by 112, three zeros follow; exact.

    Returns where that is not so (zeros, subnormal halves, infinities, what is too large): there `result` is not valid.
    """
    offset = np.bitwise_and(bits, np.uint16(0x7FFF), out=scratch.words(0, bits))
    np.subtract(offset, np.uint16(113 << 7), out=offset)
    strange = np.greater_equal(offset, np.uint16(30 << 7), out=scratch.flags(bits.size))
    np.add(offset, np.uint16(1 << 7), out=offset)
    np.left_shift(offset, 3, out=offset)
    np.bitwise_and(bits, np.uint16(0x8000), out=result)
    np.bitwise_or(result, offset, out=result)
    return np.asarray(strange)


def _round_bits(bits: Bits, result: Bits, target: TensorType, scratch: Scratch) -> NDArray[np.bool_]:
    """float32 to a 16-bit type where the result is normal or zero: the mantissa's lower bits are rounded off.

    Returns where that is not so: there `result` is not valid.
    """
    dropped, lowest, span = (13, 113 << 23, 30 << 23) if target is TensorType.F16 else (16, 1 << 23, 254 << 23)
    magnitude = np.bitwise_and(bits, np.uint32(0x7FFFFFFF), out=scratch.words(0, bits))
    rounding = np.right_shift(magnitude, dropped, out=scratch.words(1, bits))
    np.bitwise_and(rounding, np.uint32(1), out=rounding)
    np.add(rounding, np.uint32((1 << (dropped - 1)) - 1), out=rounding)
    np.add(magnitude, rounding, out=magnitude)
    np.subtract(magnitude, np.uint32(lowest), out=magnitude)
    strange = np.greater_equal(magnitude, np.uint32(span), out=scratch.flags(bits.size))
    # The smallest normal number has the exponent 1 in the new type.
    np.add(magnitude, np.uint32(1 << 23), out=magnitude)
    np.right_shift(magnitude, dropped, out=magnitude)
    np.right_shift(bits, 16, out=rounding)
    np.bitwise_and(rounding, np.uint32(0x8000), out=rounding)
    np.bitwise_or(magnitude, rounding, out=magnitude)
    result[...] = magnitude
    return np.asarray(strange)


def _scan(bits: Bits, kind: TensorType, scratch: Scratch) -> Losses:
    """Counts infinities and what is no number; nearly always there are none, so that the largest is asked first."""
    magnitude = np.bitwise_and(bits, bits.dtype.type(_MAGNITUDE[kind]), out=scratch.words(0, bits))
    if bits.size == 0 or magnitude.max() < _EXPONENT[kind]:
        return Losses()
    return Losses(not_finite=int(np.count_nonzero(magnitude >= _EXPONENT[kind])))


def _losses(exact: NDArray[np.float32], kept: NDArray[np.float32]) -> Losses:
    finite = np.isfinite(exact)
    return Losses(
        not_finite=int(exact.size - np.count_nonzero(finite)),
        overflows=int(np.count_nonzero(finite & np.isinf(kept))),
        vanished=int(np.count_nonzero((exact != 0) & (kept == 0))),
    )


def _bits(values: NDArray[np.generic]) -> Bits:
    return _view(values, values.dtype.itemsize)


def _view(values: NDArray[np.generic], item_bytes: int) -> Bits:
    return values.view(np.uint32) if item_bytes == 4 else values.view(np.uint16)


def _widened(stored: NDArray[np.generic], kind: TensorType) -> NDArray[np.float32]:
    if kind is TensorType.BF16:
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32)


def _narrow(exact: NDArray[np.float32], target: TensorType) -> NDArray[np.generic]:
    if target is not TensorType.BF16:
        with np.errstate(over="ignore"):
            return exact.astype(STORAGE[target])
    bits = exact.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding could carry a NaN over into the sign; keep it a (quiet) NaN instead.
    return np.where(np.isnan(exact), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


@cache
def _narrowed(source: TensorType, target: TensorType) -> NDArray[np.uint16]:
    """All 65536 values of a 16-bit type in another one."""
    every = np.arange(1 << 16, dtype=np.uint16).view(STORAGE[source])
    return np.asarray(_narrow(_widened(every, source), target).view(np.uint16))


@cache
def _lossy(target: TensorType) -> NDArray[np.bool_]:
    """For all 65536 values of bfloat16: whether one is no finite number, or becomes infinite or zero."""
    exact = _widened(np.arange(1 << 16, dtype=np.uint16), TensorType.BF16)
    kept = _widened(_narrow(exact, target), target)
    return np.asarray(~np.isfinite(kept) | ((exact != 0) & (kept == 0)))
