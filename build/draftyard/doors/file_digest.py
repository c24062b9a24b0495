"""One hash for a file of any size, computed on all processors, and without reading the holes of a sparse file."""

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path

PIECE_BYTES = 8 << 20
_THREADS = min(8, len(os.sched_getaffinity(0)))


def file_digest(path: Path) -> str:
    """SHA-256 over the SHA-256 of each piece of 8 MiB, in order, and the file's size: 64 hexadecimal digits.

    Not what `sha256sum` prints: pieces let several processors work on one file. Holes count as the zeros they are read
    as. `total = sha256(sha256(piece 0) .. sha256(piece n-1) + size as 8 bytes, little-endian)`.
    """
    total = hashlib.sha256()
    with path.open("rb") as file, ThreadPoolExecutor(_THREADS) as pool:
        descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
        pieces = _pieces(descriptor, size)
        # A few at a time: a file of many pieces must not queue them all.
        while batch := list(islice(pieces, 8 * _THREADS)):
            read = {
                offset: pool.submit(_piece_digest, descriptor, offset, length) for offset, length, data in batch if data
            }
            for offset, length, data in batch:
                total.update(read[offset].result() if data else _zeros_digest(length))
    total.update(size.to_bytes(8, "little"))
    return total.hexdigest()


class StreamDigest:
    """The same digest of bytes that pass by: pieces are hashed on other threads while the next ones come."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._total = hashlib.sha256()
        self._waiting: deque[Future[bytes]] = deque()
        self._size = 0

    def update(self, piece: bytes) -> None:
        """The next piece: PIECE_BYTES long, but for the last one."""
        self._waiting.append(self._pool.submit(lambda: hashlib.sha256(piece).digest()))
        self._size += len(piece)
        # Pieces that wait are memory: no more of them than keep every thread busy.
        while len(self._waiting) > 2 * _THREADS:
            self._total.update(self._waiting.popleft().result())

    def hexdigest(self) -> str:
        """64 hexadecimal digits; nothing may come after."""
        while self._waiting:
            self._total.update(self._waiting.popleft().result())
        self._total.update(self._size.to_bytes(8, "little"))
        return self._total.hexdigest()


def hash_pool() -> ThreadPoolExecutor:
    """Threads for `StreamDigest`, one for each processor that pays."""
    return ThreadPoolExecutor(_THREADS)


def bytes_digest(data: bytes) -> str:
    """The same digest of bytes in memory."""
    total = hashlib.sha256()
    for offset in range(0, len(data), PIECE_BYTES):
        total.update(hashlib.sha256(data[offset : offset + PIECE_BYTES]).digest())
    total.update(len(data).to_bytes(8, "little"))
    return total.hexdigest()


def _pieces(descriptor: int, size: int) -> Iterator[tuple[int, int, bool]]:
    """Offset, length and whether there is any data, for each piece."""
    data = _next_data(descriptor, 0, size)
    for offset in range(0, size, PIECE_BYTES):
        length = min(PIECE_BYTES, size - offset)
        if data < offset:
            data = _next_data(descriptor, offset, size)
        yield offset, length, data < offset + length


def _next_data(descriptor: int, offset: int, size: int) -> int:
    """Where data begins at or behind `offset`; the size when there is none. Without support all is data."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == _NO_MORE_DATA else offset


_NO_MORE_DATA = 6  # ENXIO


def _piece_digest(descriptor: int, offset: int, length: int) -> bytes:
    return hashlib.sha256(os.pread(descriptor, length, offset)).digest()


@lru_cache(maxsize=64)
def _zeros_digest(length: int) -> bytes:
    return hashlib.sha256(bytes(length)).digest()
