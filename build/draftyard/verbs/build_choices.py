"""What a person chooses for a build: how far, how much at once, with which builder; and the store that follows."""

import platform
from dataclasses import dataclass
from pathlib import Path

from draftyard import __version__
from draftyard.doors.host import package_version
from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.builder import Builder, Runtime
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane

ENGINES = (StepKind.CALIBRATION, StepKind.CHECKPOINT, StepKind.ENGINE)
REPOSITORIES = (*ENGINES, StepKind.REPOSITORY)
_DEFAULT_BUILDER = Builder(Runtime.HOST, "trtllm-build", "python3", "", timeout_s=6 * 3600.0)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Where to, how far, how much at once; `call` is the command as typed, for the receipts.

    `builder` compiles the engines of the tensorrt lane. A `rehearsal` goes the whole way without weights. `cluster` is
    the address of a Ray cluster whose machines share `out`; None: this machine alone. `policy` is a file that goes into
    the repositories.
    """

    out: Path
    kinds: tuple[StepKind, ...] = REPOSITORIES
    workers: int = 2
    memory_bytes: int | None = None
    call: tuple[str, ...] = ()
    builder: Builder = _DEFAULT_BUILDER
    cluster: str | None = None
    rehearsal: bool = False
    policy: Path | None = None


def open_store(options: BuildOptions) -> Store:
    """The store below the output directory, with the versions that go into receipts."""
    numpy = package_version("numpy") or "none"
    versions = {"draftyard": __version__, "python": platform.python_version(), "numpy": numpy}
    return Store(StoreRoots(options.out), versions, options.call)


def build_product(step: Step) -> Gpu | None:
    """The GPU that a step has to be made on; None when any machine will do."""
    if step.kind is not StepKind.ENGINE or step.parameters.get("lane") != Lane.TENSORRT.value:
        return None
    return Gpu(str(step.parameters["gpu"]))
