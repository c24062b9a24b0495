"""Runs the missing steps of a blueprint side by side, as far as workers, memory and their order allow."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

from draftyard.doors.store import Store
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.gpu import Gpu
from draftyard.rules.trtllm import expected_tensors, object_of
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
    """A step, who makes it, the bytes of memory it may take, and the GPU it needs for itself (None: none)."""

    step: Step
    make: Maker
    memory_bytes: int
    device: Gpu | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may run at once; `devices` lists the GPUs that steps may have for themselves."""

    workers: int
    memory_bytes: int
    devices: tuple[Gpu, ...] = ()


class Executor(Protocol):
    """Where jobs run: threads of this process, or the machines of a cluster."""

    def submit(self, job: Job) -> "Future[None]":
        """Make one artefact; the future ends with it, or with the Failure that prevented it."""
        ...

    def stop(self) -> None:
        """Make what runs end soon, after an interrupt."""
        ...


class LocalExecutor:
    """Threads of this process; `input_path` gives the directory of any artefact of the blueprint."""

    def __init__(self, store: Store, input_path: Callable[[str], Path], watcher: Watcher, workers: int) -> None:
        self._place = (store, input_path, watcher)
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max(1, workers))

    def __enter__(self) -> "LocalExecutor":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True)

    def submit(self, job: Job) -> "Future[None]":
        """Make one artefact on a thread."""
        return self._pool.submit(_run, job, *self._place, self._stop)

    def stop(self) -> None:
        """Each maker gives up when it next tells of its progress."""
        self._stop.set()


def run_jobs(jobs: tuple[Job, ...], executor: Executor, bounds: Bounds, watcher: Watcher) -> None:
    """Run all jobs, each after its inputs. A job that fails stops only those that need it; the others go on.

    At the end one Failure tells of all that failed. A job that alone needs more than the memory given runs by itself.
    """
    keys = {job.step.key for job in jobs}
    waiting, running, done = list(jobs), dict[Future[None], Job](), set[str]()
    failed: list[tuple[Step, Failure]] = []
    try:
        while waiting or running:
            for job in _startable(waiting, tuple(running.values()), done, keys, bounds):
                waiting.remove(job)
                running[executor.submit(job)] = job
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                job = running.pop(future)
                try:
                    future.result()
                    done.add(job.step.key)
                except Failure as failure:
                    failed.append((job.step, failure))
                    watcher.told(f"failed  {job.step.label}: {failure.message}")
                    waiting = _without_dependents(waiting, job.step.key)
    except BaseException as error:
        if not isinstance(error, Exception):
            executor.stop()
        raise
    _raise_failed(failed, len(jobs))


def _without_dependents(waiting: list[Job], key: str) -> list[Job]:
    """Those that need the artefact neither directly nor through another one."""
    lost = {key}
    for job in waiting:  # inputs come before what is made of them
        if lost & set(job.step.inputs):
            lost.add(job.step.key)
    return [job for job in waiting if job.step.key not in lost]


def _raise_failed(failed: list[tuple[Step, Failure]], jobs: int) -> None:
    if not failed:
        return
    if len(failed) == 1 and jobs == 1:
        raise failed[0][1]
    codes = {failure.code for _, failure in failed}
    words = "; ".join(f"{step.label}: {failure.message}" for step, failure in failed)
    hints = " / ".join(dict.fromkeys(failure.hint for _, failure in failed))
    raise Failure(words, hints, codes.pop() if len(codes) == 1 else ExitCode.WORK_FAILED)


def _startable(
    waiting: list[Job], running: tuple[Job, ...], done: set[str], keys: set[str], bounds: Bounds
) -> list[Job]:
    chosen: list[Job] = []
    for job in waiting:
        busy = [*running, *chosen]
        ready = all(key in done for key in job.step.inputs if key in keys)
        fits = sum(other.memory_bytes for other in busy) + job.memory_bytes <= bounds.memory_bytes
        if ready and len(busy) < bounds.workers and (fits or not busy) and _device_free(job, busy, bounds):
            chosen.append(job)
    return chosen


def _device_free(job: Job, busy: list[Job], bounds: Bounds) -> bool:
    if job.device is None:
        return True
    taken = sum(other.device is job.device for other in busy)
    return taken < max(1, bounds.devices.count(job.device))


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


def step_memory_bytes(step: Step) -> int:
    """An upper estimate: a checkpoint step streams what it writes, a calibration holds a layer, others little."""
    if step.kind is StepKind.CALIBRATION:
        return _calibration_bytes(step)
    if step.kind is StepKind.CHECKPOINT:
        return 256 * _MIB
    return 64 * _MIB


def _calibration_bytes(step: Step) -> int:
    """A layer's weights as stored and in float32, and the activations of one pass."""
    expected = expected_tensors(object_of(step.parameters, "config"), 0)
    layer = [prod(shape) for name, (_, shape) in expected.items() if name.startswith("transformer.layers.0.")]
    outer = max(prod(shape) * kind.item_bytes for kind, shape in expected.values())
    return 12 * sum(layer) + outer + 512 * _MIB
