"""Makes what a recipe asks for: checkpoints, engines and, when asked to package, repositories."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from draftyard import __version__
from draftyard.doors.host import read_host
from draftyard.doors.recipe_files import remember
from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.builder import BuildDevice, Builder, Runtime
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane
from draftyard.verbs.build_devices import DevicePool, find_devices
from draftyard.verbs.calibrate_scales import make_calibration
from draftyard.verbs.compile import make_engine
from draftyard.verbs.compile_plans import PlanMaker
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.drawing import Drawing, draw_recipe
from draftyard.verbs.making import Maker, Workplace
from draftyard.verbs.package import make_repository
from draftyard.verbs.running import Bounds, Job, LocalExecutor, Watcher, run_jobs, step_memory_bytes

_DEFAULT_BUILDER = Builder(Runtime.HOST, "trtllm-build", "python3", "", timeout_s=6 * 3600.0)
MAKERS: Mapping[StepKind, Maker] = {
    StepKind.CALIBRATION: make_calibration,
    StepKind.CHECKPOINT: make_checkpoint,
    StepKind.ENGINE: make_engine,
    StepKind.REPOSITORY: make_repository,
}
ENGINES = (StepKind.CALIBRATION, StepKind.CHECKPOINT, StepKind.ENGINE)
REPOSITORIES = (*ENGINES, StepKind.REPOSITORY)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Where to, how far, how much at once; `call` is the command as typed, for the receipts.

    `builder` compiles the engines of the tensorrt lane.
    """

    out: Path
    kinds: tuple[StepKind, ...] = REPOSITORIES
    workers: int = 2
    memory_bytes: int | None = None
    call: tuple[str, ...] = ()
    builder: Builder = _DEFAULT_BUILDER


@dataclass(frozen=True, slots=True)
class Built:
    """One artefact that exists now."""

    label: str
    kind: str
    key: str
    path: Path


def open_store(options: BuildOptions) -> Store:
    """The store below the output directory, with the versions that go into receipts."""
    versions = {"draftyard": __version__, "python": platform.python_version(), "numpy": np.__version__}
    return Store(StoreRoots(options.out), versions, options.call)


def build(recipe: Path, options: BuildOptions, watcher: Watcher) -> tuple[Drawing, tuple[Built, ...]]:
    """Make every missing artefact of a recipe, in order, side by side where possible; what is there stays.

    Failure when recipe, models or their combination are wrong (nothing is written then), when a step fails, or when
    steps are left for hosts with other GPUs; what was finished until then stays, and the next build goes on from there.
    """
    roots = StoreRoots(options.out)
    drawing = draw_recipe(recipe, roots.cache)
    for note in drawing.notes:
        watcher.told(note)
    store = open_store(options)
    steps = tuple(step for step in drawing.blueprint.steps if step.kind in options.kinds)
    missing = tuple(step for step in steps if store.receipt(step) is None)
    for step in steps:
        if step not in missing:
            watcher.finished(step, False, 0.0)
    store.sweep()
    devices = find_devices() if any(_product(step) for step in missing) else ()
    here, elsewhere = _split_by_place(missing, devices)
    makers = _makers(options, devices)
    kinds = {step.key: step.kind for step in drawing.blueprint.steps}
    jobs, bounds = _jobs(here, drawing, makers), _bounds(options, devices)
    with LocalExecutor(store, lambda key: store.path(kinds[key], key), watcher, bounds.workers) as executor:
        run_jobs(jobs, executor, bounds, watcher)
    remember(roots.by_recipe, drawing.blueprint)
    _raise_elsewhere(elsewhere, devices)
    return drawing, tuple(
        Built(step.label, step.kind.value, step.key, store.path(step.kind, step.key)) for step in steps
    )


def _product(step: Step) -> Gpu | None:
    """The GPU that a step has to be made on; None when any machine will do."""
    if step.kind is not StepKind.ENGINE or step.parameters.get("lane") != Lane.TENSORRT.value:
        return None
    return Gpu(str(step.parameters["gpu"]))


def _split_by_place(
    steps: tuple[Step, ...], devices: tuple[BuildDevice, ...]
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """What this host can make, and what needs a GPU that it has not, with all that is made of it."""
    products = {device.product for device in devices}
    here: list[Step] = []
    elsewhere: list[Step] = []
    lost: set[str] = set()
    for step in steps:
        product = _product(step)
        away = (product is not None and product not in products) or bool(lost & set(step.inputs))
        (elsewhere if away else here).append(step)
        lost |= {step.key} if away else set()
    return tuple(here), tuple(elsewhere)


def _raise_elsewhere(steps: tuple[Step, ...], devices: tuple[BuildDevice, ...]) -> None:
    if not steps:
        return
    labels = ", ".join(step.label for step in steps)
    found = ", ".join(sorted({device.name for device in devices})) or "none"
    wanted = ", ".join(sorted({product.value for product in map(_product, steps) if product is not None}))
    raise Failure(
        f"left for hosts with {wanted} (GPUs here: {found}): {labels}",
        "run the same command there, with --out on a shared file system",
        ExitCode.ENVIRONMENT,
    )


def _makers(options: BuildOptions, devices: tuple[BuildDevice, ...]) -> Mapping[StepKind, Maker]:
    plans = PlanMaker(
        builder=options.builder,
        borrow=DevicePool(devices).borrow,
        logs=StoreRoots(options.out).folder(StepKind.ENGINE) / "logs",
    )

    def make_any_engine(step: Step, workplace: Workplace) -> tuple[str, ...]:
        return (make_engine if _product(step) is None else plans.make)(step, workplace)

    return {**MAKERS, StepKind.ENGINE: make_any_engine}


def check(recipe: Path, options: BuildOptions, watcher: Watcher) -> None:
    """Read every byte of what was made for a recipe and compare hashes; Failure (exit code 1) lists what differs.

    Artefacts share files by hard links, so those of later kinds are read too where they exist: one bad byte in a
    checkpoint is a bad byte in its repositories.
    """
    drawing = draw_recipe(recipe, StoreRoots(options.out).cache)
    store = open_store(options)
    problems: list[Problem] = []
    for step in drawing.blueprint.steps:
        if step.kind in options.kinds or store.receipt(step) is not None:
            found = store.check(step)
            problems.extend(found)
            watcher.told(f"whole  {step.label}" if not found else f"wrong  {step.label}")
    raise_problems(problems, ExitCode.WORK_FAILED)


def _jobs(missing: tuple[Step, ...], drawing: Drawing, makers: Mapping[StepKind, Maker]) -> tuple[Job, ...]:
    sources = {source.path: source for source in (drawing.target, *drawing.drafts)}

    def largest(path: str) -> int:
        return max(tensor.size_bytes for tensor in sources[path].tensors)

    return tuple(Job(step, makers[step.kind], step_memory_bytes(step, largest), _product(step)) for step in missing)


def _bounds(options: BuildOptions, devices: tuple[BuildDevice, ...]) -> Bounds:
    """Without a bound given, half of the memory that is free now."""
    memory_bytes = options.memory_bytes or read_host(options.out).available_bytes // 2
    return Bounds(options.workers, memory_bytes, tuple(device.product for device in devices))
