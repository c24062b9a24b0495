"""One maker at a time for one artefact, also across processes; a killed holder lets go by itself."""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.05


@contextmanager
def exclusive(path: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file `path`; `waiting` is told again and again who holds it, and may raise to give up.

    The file stays: removing it would let two holders lock two files of the same name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while not _taken(descriptor):
            waiting(_holder(descriptor))
            # Polled, because a blocking call in a worker thread cannot be interrupted.
            time.sleep(POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_if_free(path: Path) -> Iterator[bool]:
    """True when the lock could be taken at once and is held, False when another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield _taken(descriptor)
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "another process"
