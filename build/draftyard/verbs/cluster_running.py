"""Makes the artefacts of a blueprint on a Ray cluster: the same steps, on the machines that have their GPU."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from draftyard.doors.ray_cluster import Needs, RayCluster, Tell, assigned_gpus
from draftyard.nouns.blueprint import Step
from draftyard.nouns.builder import BuildDevice
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.gpu import Gpu
from draftyard.verbs.build_devices import DevicePool, find_devices
from draftyard.verbs.running import Job, Watcher

_POLL_S = 0.5
# Ray names the chip; which board it is, the machine that runs the step checks for itself.
ACCELERATORS = {Gpu.H100_SXM: "H100", Gpu.H100_PCIE: "H100", Gpu.H100_NVL: "H100", Gpu.H200_SXM: "H200"}


@dataclass(frozen=True, slots=True)
class RemoteStep:
    """A step to be made on another machine, which shares the store's file system.

    `make` gets the devices that the machine lends to this task, and who is told about progress.
    """

    step: Step
    make: Callable[[Step, DevicePool, Tell], None]

    def __call__(self, tell: Tell) -> None:
        """Run there."""
        self.make(
            self.step, DevicePool(_lent_devices() if self.step.parameters.get("lane") == "tensorrt" else ()), tell
        )


def _lent_devices() -> tuple[BuildDevice, ...]:
    found, indices = find_devices(), assigned_gpus()
    lent = tuple(found[index] for index in indices if index < len(found))
    if not lent:
        raise Failure(
            f"this machine lends GPUs {list(indices)}, the driver lists {len(found)}",
            "start Ray with the GPUs that nvidia-smi lists",
            ExitCode.ENVIRONMENT,
        )
    return lent


class ClusterExecutor:
    """Submits jobs to a cluster and passes progress on; a thread of its own asks for it."""

    def __init__(self, cluster: RayCluster, make: Callable[[Step, DevicePool, Tell], None], watcher: Watcher) -> None:
        self._cluster = cluster
        self._make = make
        self._watcher = watcher
        self._steps: dict[str, Step] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="cluster progress", daemon=True)

    def __enter__(self) -> "ClusterExecutor":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def submit(self, job: Job) -> "Future[None]":
        """Make one artefact where its GPU is."""
        step = job.step
        self._steps[step.label] = step
        accelerator = ACCELERATORS[job.device] if job.device is not None else ""
        needs = Needs(1, 1 if job.device is not None else 0, accelerator, job.memory_bytes)
        began = time.monotonic()
        future = self._cluster.submit(RemoteStep(step, self._make), step.label, needs)
        self._watcher.started(step)
        future.add_done_callback(partial(self._finished, step, began))
        return future

    def stop(self) -> None:
        """Cancel what runs and what waits."""
        self._cluster.cancel()

    def _finished(self, step: Step, began: float, future: "Future[None]") -> None:
        if future.exception() is None:
            self._watcher.finished(step, True, time.monotonic() - began)

    def _follow(self) -> None:
        while not self._over.wait(_POLL_S):
            for progress in self._cluster.progress():
                step = self._steps.get(progress.label)
                if step is not None:
                    self._watcher.progressed(step, progress.share, f"{progress.words} on {progress.machine}")
