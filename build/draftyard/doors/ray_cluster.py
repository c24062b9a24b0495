"""Runs functions on the machines of a Ray cluster; the one module that knows Ray, which is an optional dependency."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, TypeAlias

from draftyard.nouns.errors import ExitCode, Failure

# What a remote function is given to tell of its progress: share done in 0..1 and a few words.
Tell: TypeAlias = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a task needs for itself: processors, GPUs, and the accelerator's name as Ray knows it (empty: none)."""

    processors: int = 1
    gpus: int = 0
    accelerator: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The last word of a running task."""

    label: str
    share: float
    words: str
    machine: str


Outcome: TypeAlias = Mapping[str, str | int] | None


class _Method(Protocol):
    """A method of an actor."""

    def remote(self, *arguments: object) -> object:
        """Call it there."""
        ...


class _BoardActor(Protocol):
    """The board as seen from other processes."""

    put: _Method
    take: _Method


class RayCluster:
    """A connection to a cluster. Tasks of lost machines are started again elsewhere, `retries` times."""

    def __init__(self, ray: ModuleType, retries: int) -> None:
        self._ray = ray
        self._retries = retries
        self._board = ray.remote(_Board).options(num_cpus=0).remote()
        self._running: list[object] = []

    def accelerators(self) -> tuple[str, ...]:
        """Names of the accelerators of all living machines, such as H100."""
        prefix = "accelerator_type:"
        names = {name for node in self._ray.nodes() if node["Alive"] for name in node["Resources"]}
        return tuple(sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)))

    def submit(self, function: Callable[[Tell], None], label: str, needs: Needs) -> "Future[None]":
        """Run `function` on a machine that has what it needs.

        Failures come back through the future as they are; whatever else ends a task becomes a Failure of the work.
        """
        resources = {f"accelerator_type:{needs.accelerator}": 0.001} if needs.accelerator else {}
        remote = self._ray.remote(_call).options(
            num_cpus=needs.processors,
            num_gpus=needs.gpus,
            memory=needs.memory_bytes or None,
            resources=resources or None,
            max_retries=self._retries,
            retry_exceptions=False,
        )
        reference = remote.remote(function, self._board, label)
        self._running.append(reference)
        outcome: Future[None] = Future()
        reference.future().add_done_callback(lambda done: _settle(outcome, done, label))
        return outcome

    def progress(self) -> tuple[Progress, ...]:
        """What tasks have said since the last call."""
        found: list[tuple[str, float, str, str]] = self._ray.get(self._board.take.remote())
        return tuple(Progress(*entry) for entry in found)

    def cancel(self) -> None:
        """End all tasks; those that run are interrupted."""
        for reference in self._running:
            self._ray.cancel(reference, force=False)


@contextmanager
def connect(address: str, retries: int = 3) -> Iterator[RayCluster]:
    """Join the cluster at `address` (`auto`: the one of this machine). Failure when Ray or the cluster is not there."""
    try:
        import ray
    except ImportError as error:
        raise Failure("ray is not installed", "pip install 'ray>=2.40'", ExitCode.ENVIRONMENT) from error
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        hint = "start one: ray start --head, and on each further machine ray start --address HOST:6379"
        raise Failure(f"no Ray cluster at {address}: {error}", hint, ExitCode.ENVIRONMENT) from error
    try:
        yield RayCluster(ray, retries)
    finally:
        ray.shutdown()


class _Board:
    """An actor: keeps the last word of each task until somebody asks."""

    def __init__(self) -> None:
        self._words: dict[str, tuple[str, float, str, str]] = {}

    def put(self, label: str, share: float, words: str, machine: str) -> None:
        self._words[label] = (label, share, words, machine)

    def take(self) -> list[tuple[str, float, str, str]]:
        found = list(self._words.values())
        self._words.clear()
        return found


def _call(function: Callable[[Tell], None], board: _BoardActor, label: str) -> Outcome:
    """On the other machine: a Failure travels as its parts, because not every exception survives the journey."""
    import platform

    machine = platform.node()

    def tell(share: float, words: str) -> None:
        board.put.remote(label, share, words, machine)

    try:
        function(tell)
    except Failure as failure:
        return {"message": failure.message, "hint": failure.hint, "code": int(failure.code)}
    return None


def _settle(outcome: "Future[None]", done: "Future[Outcome]", label: str) -> None:
    try:
        parts = done.result()
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "read the logs of Ray on the machine that ran it, then run the same command again"
        outcome.set_exception(Failure(f"{label} was lost: {first[:300]}", hint, ExitCode.WORK_FAILED))
        return
    if parts is None:
        outcome.set_result(None)
    else:
        code = ExitCode(int(parts["code"]))
        outcome.set_exception(Failure(str(parts["message"]), str(parts["hint"]), code))


def assigned_gpus() -> tuple[int, ...]:
    """Indices of the GPUs that Ray gave to the task this is called in."""
    import ray

    return tuple(int(index) for index in ray.get_gpu_ids())
