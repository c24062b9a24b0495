"""Measures memory and arithmetic of this machine with numpy."""

import time
from collections.abc import Callable

import numpy as np

_COPY_BYTES = 1 << 28  # larger than any cache
_MATRIX = 768
_ROUNDS = 5


def measure_copy() -> float:
    """Bytes a second that a copy reads and writes, the best of a few."""
    source = np.ones(_COPY_BYTES // 16)
    target = np.empty_like(source)
    return 2 * source.nbytes / min(_timed(lambda: np.copyto(target, source)) for _ in range(_ROUNDS))


def measure_matrix() -> float:
    """FLOPs a second of a float32 product, the best of a few."""
    left = np.ones((_MATRIX, _MATRIX), dtype=np.float32)
    right = np.ones((_MATRIX, _MATRIX), dtype=np.float32)
    return 2.0 * _MATRIX**3 / min(_timed(lambda: left @ right) for _ in range(_ROUNDS))


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
