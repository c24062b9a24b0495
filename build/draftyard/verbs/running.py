"""Runs the missing steps of a blueprint side by side, as far as workers, memory and their order allow."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from draftyard.doors.store import Store
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.verbs.making import Maker, Workplace

_MIB = 1 << 20


class Watcher(Protocol):
    """Who is told how it goes; called from several threads."""

    def started(self, step: Step) -> None:
        """The step's turn has come."""
        ...

    def progressed(self, step: Step, share: float, words: str) -> None:
        """`share` in 0..1 is done."""
        ...

    def finished(self, step: Step, made: bool, seconds: float) -> None:
        """The artefact exists; `made` tells whether it was made now."""
        ...

    def told(self, words: str) -> None:
        """A line for people."""
        ...


class _Stopped(Exception):
    """Raised inside a maker after an interrupt, so that it ends and cleans up."""


@dataclass(frozen=True, slots=True)
class Job:
    """A step, who makes it, and the bytes of memory it may take."""

    step: Step
    make: Maker
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may run at once."""

    workers: int
    memory_bytes: int


def run_jobs(
    jobs: tuple[Job, ...], store: Store, input_path: Callable[[str], Path], bounds: Bounds, watcher: Watcher
) -> None:
    """Run all jobs, each after its inputs. The first Failure stops new ones and is raised when the running ones ended.

    `input_path` gives the directory of any artefact of the blueprint. A job that alone needs more than the memory
    given runs by itself.
    """
    stop = threading.Event()
    keys = {job.step.key for job in jobs}
    waiting, running, done = list(jobs), dict[Future[None], Job](), set[str]()
    with ThreadPoolExecutor(max(1, bounds.workers)) as pool:
        try:
            while waiting or running:
                for job in _startable(waiting, tuple(running.values()), done, keys, bounds):
                    waiting.remove(job)
                    running[pool.submit(_run, job, store, input_path, watcher, stop)] = job
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    job = running.pop(future)
                    future.result()
                    done.add(job.step.key)
        except BaseException as error:
            if not isinstance(error, Exception):
                stop.set()
            raise


def _startable(
    waiting: list[Job], running: tuple[Job, ...], done: set[str], keys: set[str], bounds: Bounds
) -> list[Job]:
    chosen: list[Job] = []
    for job in waiting:
        busy = [*running, *chosen]
        ready = all(key in done for key in job.step.inputs if key in keys)
        fits = sum(other.memory_bytes for other in busy) + job.memory_bytes <= bounds.memory_bytes
        if ready and len(busy) < bounds.workers and (fits or not busy):
            chosen.append(job)
    return chosen


def _run(job: Job, store: Store, input_path: Callable[[str], Path], watcher: Watcher, stop: threading.Event) -> None:
    step = job.step

    def progress(share: float, words: str) -> None:
        if stop.is_set():
            raise _Stopped
        watcher.progressed(step, share, words)

    def fill(staging: Path) -> tuple[str, ...]:
        sources = tuple(Path(source) for source in step.sources)
        return job.make(step, Workplace(staging, input_path, sources, progress))

    told: set[str] = set()

    def tell_once(words: str) -> None:
        if stop.is_set():
            raise _Stopped
        if words not in told:
            told.add(words)
            watcher.told(words)

    began = time.monotonic()
    watcher.started(step)
    ensured = store.ensure(step, fill, tell_once)
    watcher.finished(step, ensured.made, time.monotonic() - began)


def step_memory_bytes(step: Step, largest_tensor_bytes: Callable[[str], int]) -> int:
    """An upper estimate. A checkpoint step holds the parts of a tensor, their cast and the pieces; others little.

    `largest_tensor_bytes` gives the largest source tensor of a model directory.
    """
    if step.kind is StepKind.CHECKPOINT:
        return 6 * largest_tensor_bytes(step.sources[0]) + 64 * _MIB
    return 64 * _MIB
