"""Turns weights into FP8 (E4M3, no infinities) and back: one byte a value, the largest is 448."""

import numpy as np
from numpy.typing import NDArray

from draftyard.nouns.tensor import TensorType
from draftyard.rules.casting import STORAGE

LARGEST = 448.0
# The only bytes that are no number: all exponent and mantissa bits set, of either sign.
NAN_BYTES = (0x7F, 0xFF)
_PIECE = 1 << 16
_SIGNS = {TensorType.F32: 0x7FFFFFFF, TensorType.F16: 0x7FFF, TensorType.BF16: 0x7FFF}


def to_e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Bytes of the nearest E4M3 values, ties to even; what lies beyond 448 becomes 448, NaN stays NaN.

    The format is that of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022): bias 7, subnormals in steps of
    2^-9. Bit for bit what torch 2.13 casts to float8_e4m3fn; before it, torch made NaN of what is beyond 464.
    """
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    result = np.empty(flat.shape, dtype=np.uint8)
    for at in range(0, flat.size, _PIECE):
        result[at : at + _PIECE] = _piece_to_e4m3(flat[at : at + _PIECE])
    return result.reshape(values.shape)


def _piece_to_e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    # The comparison is written so that NaN falls through `minimum` unharmed.
    size = np.minimum(np.abs(values), np.float32(LARGEST))
    bits = size.view(np.uint32)
    # Normal numbers keep 3 of 23 mantissa bits; the exponent's bias falls from 127 to 7.
    rounded = ((bits + np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)) - np.uint32(960)
    # Below 2^-6 a sum with 2^14, whose last bit is worth 2^-9, rounds to whole steps.
    with np.errstate(invalid="ignore"):
        steps = (size + np.float32(16384.0)).view(np.uint32) - np.uint32(0x46800000)
    code = np.where(size < np.float32(2.0**-6), steps, rounded)
    code = np.where(np.isnan(size), np.uint32(0x7F), code)
    signs = (values.view(np.uint32) >> np.uint32(24)) & np.uint32(0x80)
    return np.asarray((code | signs).astype(np.uint8))


def _decoded() -> NDArray[np.float32]:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    normal = (1.0 + mantissa / 8.0) * np.exp2(exponent - 7.0)
    values = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    values[[*NAN_BYTES]] = np.nan
    return np.where(codes >= 128, -values, values).astype(np.float32)


_DECODED = _decoded()


def from_e4m3(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values of E4M3 bytes, exactly."""
    return np.asarray(_DECODED[codes])


class Quantiser:
    """Turns stored values into E4M3 bytes of value / `scale`; those that are E4M3 already have the scale `old`.

    A type of 8 or 16 bits has few values, so they are converted once and looked up.
    """

    def __init__(self, kind: TensorType, scale: np.float32, old: np.float32 | None = None) -> None:
        """`kind` is the type whose storage the values are in."""
        self.scale = scale
        self._kind = kind
        self._table: NDArray[np.uint8] | None = None
        with np.errstate(over="ignore", invalid="ignore"):
            if kind is TensorType.F8_E4M3:
                if old is None:
                    raise ValueError("values in E4M3 have a scale")
                same = np.arange(256, dtype=np.uint8)
                self._table = same if old == scale else to_e4m3(_DECODED * old / scale)
            elif kind is not TensorType.F32:
                every = np.arange(1 << 16, dtype=np.uint16)
                self._table = to_e4m3(_widened(every.view(STORAGE[kind]), kind) / scale)

    def __call__(self, stored: NDArray[np.generic]) -> NDArray[np.uint8]:
        """Bytes in the shape of `stored`."""
        if self._table is None:
            return _quantise_float32(stored.astype(np.float32, copy=False), self.scale)
        if self._kind is TensorType.F8_E4M3:
            return np.asarray(np.take(self._table, stored.view(np.uint8), mode="clip"))
        return np.asarray(np.take(self._table, stored.view(np.uint16), mode="clip"))


def largest_magnitude(stored: NDArray[np.generic], kind: TensorType) -> np.float32:
    """max |x| of a tensor, exact; NaN or infinity when it holds one. Zero for an empty tensor."""
    if stored.size == 0:
        return np.float32(0)
    wide = np.dtype(np.uint32 if kind is TensorType.F32 else np.uint16)
    # Bit patterns without their sign order like the magnitudes, NaN above infinity.
    bits, unsigned = stored.reshape(-1).view(wide), np.array(_SIGNS[kind], dtype=wide)
    pieces = (bits[at : at + (1 << 20)] for at in range(0, bits.size, 1 << 20))
    most = max(int(np.bitwise_and(piece, unsigned).max()) for piece in pieces)
    return np.float32(_widened(np.array([most], dtype=wide).view(STORAGE[kind]), kind)[0])


def nan_bytes(codes: NDArray[np.uint8]) -> int:
    """How many bytes of an E4M3 tensor are no number."""
    flat = codes.reshape(-1)
    pieces = (flat[at : at + (1 << 20)] for at in range(0, flat.size, 1 << 20))
    return sum(int(np.count_nonzero((piece & np.uint8(0x7F)) == np.uint8(0x7F))) for piece in pieces)


def _quantise_float32(values: NDArray[np.float32], scale: np.float32) -> NDArray[np.uint8]:
    flat = values.reshape(-1)
    result = np.empty(flat.shape, dtype=np.uint8)
    for at in range(0, flat.size, _PIECE):
        with np.errstate(over="ignore", invalid="ignore"):
            result[at : at + _PIECE] = _piece_to_e4m3(flat[at : at + _PIECE] / scale)
    return result.reshape(values.shape)


def _widened(stored: NDArray[np.generic], kind: TensorType) -> NDArray[np.float32]:
    if kind is TensorType.BF16:
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32)
