"""Lets signals end a command the way Ctrl-C does, so that what it started is stopped too."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_interrupt(*numbers: signal.Signals) -> Iterator[None]:
    """Each of these signals raises KeyboardInterrupt in the main thread; what they did before comes back on leaving."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
