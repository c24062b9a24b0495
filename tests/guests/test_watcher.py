import threading
import time

from tests.guests.rig import wait_until
from watcher import Watcher


class Stream:
    def __init__(self, name, stopping=False):
        self.inner_id = name
        self.started = True
        self.stopping = stopping
        self.watched = 0

    def watch(self, now):
        self.watched += 1


def test_a_stop_that_hangs_does_not_stop_the_watch():
    release, stops = threading.Event(), []

    def stop(inner_id):
        stops.append(inner_id)
        release.wait(10)

    watcher = Watcher(0.005, stop, lambda message: None)
    hanging, other = Stream("hanging", stopping=True), Stream("other")
    watcher.add(hanging)
    watcher.add(other)
    watcher.start()
    wait_until(lambda: stops and other.watched > 5, 5)
    assert stops == ["hanging"]
    release.set()
    watcher.close(0)


def test_a_stop_is_repeated_until_the_stream_has_left():
    stops = []
    watcher = Watcher(0.005, stops.append, lambda message: None)
    stream = Stream("late", stopping=True)
    watcher.add(stream)
    watcher.start()
    wait_until(lambda: len(stops) >= 3, 5)
    watcher.remove(stream)
    wait_until(lambda: not watcher.running(), 1)
    watcher.close(1)
    count = len(stops)
    time.sleep(0.03)
    assert len(stops) == count


def test_a_failing_stop_is_reported():
    reports = []

    def stop(inner_id):
        raise RuntimeError("no engine")

    watcher = Watcher(0.005, stop, reports.append)
    stream = Stream("x", stopping=True)
    watcher.add(stream)
    watcher.start()
    wait_until(lambda: reports, 5)
    assert "no engine" in reports[0]
    watcher.remove(stream)
    watcher.close(1)
