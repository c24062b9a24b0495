"""Looks after all running streams: cancelled clients, deadlines, and stop requests to the engine."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

STOP_THREADS = 2
GIVE_UP_AFTER_S = 30.0


class Watched(Protocol):
    """What the watcher needs of a stream."""

    inner_id: str
    started: bool
    stopping: bool

    def watch(self, now: float) -> None:
        """End the stream when its client or its time has gone."""
        ...


class Watcher:
    """One thread that looks at every stream each period.

    A stop request is repeated each period until the stream has left, because one that overtakes its request finds
    nothing to stop. Stop requests run in threads of their own: an engine that hangs must not stop the watch. A stream
    that does not leave in spite of them is given up: Triton 24.10 never ends the stream of a caller inside the server
    when an error carries the final flag, and a thread that waits for it cannot be woken.
    """

    def __init__(
        self,
        period_s: float,
        stop: Callable[[str], None],
        report: Callable[[str], None],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """`tick` is called once a period."""
        self._period_s = period_s
        self._stop = stop
        self._report = report
        self._tick = tick
        self._streams: dict[str, Watched] = {}
        self._stops: dict[str, Future[None]] = {}
        self._stopping_since: dict[str, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(STOP_THREADS, "stop")
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def add(self, stream: Watched) -> None:
        """Watch this stream from now on."""
        with self._lock:
            self._streams[stream.inner_id] = stream

    def remove(self, stream: Watched) -> None:
        """The stream has left the engine."""
        with self._lock:
            self._streams.pop(stream.inner_id, None)

    def running(self) -> tuple[Watched, ...]:
        """The streams that have not left."""
        with self._lock:
            return tuple(self._streams.values())

    def stop_now(self, stream: Watched) -> None:
        """Send the stop request of this stream unless one is on its way."""
        with self._lock:
            earlier = self._stops.get(stream.inner_id)
            if stream.inner_id not in self._streams or (earlier is not None and not earlier.done()):
                return
            self._stops[stream.inner_id] = self._pool.submit(self._send_stop, stream.inner_id)

    def close(self, wait_s: float) -> None:
        """Wait for the streams to leave, at most so long, then end the watch."""
        until = time.monotonic() + wait_s
        while self.running() and time.monotonic() < until:
            time.sleep(min(self._period_s, 0.05))
        self._closed.set()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            self._tick()
            for stream in self.running():
                stream.watch(time.monotonic())
                if stream.stopping and stream.started:
                    self._end(stream)
            with self._lock:
                self._stops = {key: stop for key, stop in self._stops.items() if key in self._streams}
                since = self._stopping_since
                self._stopping_since = {key: begin for key, begin in since.items() if key in self._streams}

    def _end(self, stream: Watched) -> None:
        since = self._stopping_since.setdefault(stream.inner_id, time.monotonic())
        if time.monotonic() - since < GIVE_UP_AFTER_S:
            self.stop_now(stream)
            return
        self._report(f"the engine does not end {stream.inner_id}: given up")
        self.remove(stream)

    def _send_stop(self, inner_id: str) -> None:
        try:
            self._stop(inner_id)
        except Exception as error:  # reported, and tried again next period
            self._report(f"stop request for {inner_id}: {type(error).__name__}: {error}")
