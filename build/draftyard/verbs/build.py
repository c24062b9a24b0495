"""Makes what a recipe asks for: checkpoints, engines and, when asked to package, repositories."""

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from draftyard import __version__
from draftyard.doors.host import read_host
from draftyard.doors.ray_cluster import Tell, connect
from draftyard.doors.recipe_files import remember
from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.builder import Builder, Runtime
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane
from draftyard.verbs.build_devices import DevicePool, find_devices
from draftyard.verbs.calibrate_scales import make_calibration
from draftyard.verbs.cluster_running import ACCELERATORS, ClusterExecutor
from draftyard.verbs.compile import make_engine
from draftyard.verbs.compile_plans import PlanMaker
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.drawing import Drawing, draw_recipe
from draftyard.verbs.making import Maker, Workplace
from draftyard.verbs.package import make_repository
from draftyard.verbs.rehearsal import rehearse_calibration, rehearse_checkpoint
from draftyard.verbs.running import Bounds, Job, LocalExecutor, Watcher, run_jobs, step_memory_bytes

_MOST_TASKS = 256
_DEFAULT_BUILDER = Builder(Runtime.HOST, "trtllm-build", "python3", "", timeout_s=6 * 3600.0)
MAKERS: Mapping[StepKind, Maker] = {
    StepKind.CALIBRATION: make_calibration,
    StepKind.CHECKPOINT: make_checkpoint,
    StepKind.ENGINE: make_engine,
    StepKind.REPOSITORY: make_repository,
}
REHEARSALS: Mapping[StepKind, Maker] = {
    StepKind.CALIBRATION: rehearse_calibration,
    StepKind.CHECKPOINT: rehearse_checkpoint,
}
ENGINES = (StepKind.CALIBRATION, StepKind.CHECKPOINT, StepKind.ENGINE)
REPOSITORIES = (*ENGINES, StepKind.REPOSITORY)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Where to, how far, how much at once; `call` is the command as typed, for the receipts.

    `builder` compiles the engines of the tensorrt lane. A `rehearsal` goes the whole way without weights. `cluster` is
    the address of a Ray cluster whose machines share `out`; None: this machine alone.
    """

    out: Path
    kinds: tuple[StepKind, ...] = REPOSITORIES
    workers: int = 2
    memory_bytes: int | None = None
    call: tuple[str, ...] = ()
    builder: Builder = _DEFAULT_BUILDER
    cluster: str | None = None
    rehearsal: bool = False


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
    drawing = draw_recipe(recipe, roots.cache, options.rehearsal)
    for note in drawing.notes:
        watcher.told(note)
    store = open_store(options)
    steps = tuple(step for step in drawing.blueprint.steps if step.kind in options.kinds)
    missing = tuple(step for step in steps if store.receipt(step) is None)
    for step in steps:
        if step not in missing:
            watcher.finished(step, False, 0.0)
    store.sweep()
    elsewhere = _make(missing, options, watcher)
    remember(roots.by_recipe, drawing.blueprint)
    _raise_elsewhere(elsewhere)
    return drawing, tuple(
        Built(step.label, step.kind.value, step.key, store.path(step.kind, step.key)) for step in steps
    )


def _make(missing: tuple[Step, ...], options: BuildOptions, watcher: Watcher) -> tuple[Step, ...]:
    """Make what can be made here, or on the cluster; returns the steps that need a GPU which is not there."""
    if options.cluster is not None:
        return _make_on_cluster(missing, options, options.cluster, watcher)
    devices = find_devices() if any(_product(step) for step in missing) else ()
    here, elsewhere = _split_by_place(missing, {device.product for device in devices})
    maker = StepMaker(options, DevicePool(devices))
    bounds = Bounds(options.workers, _memory_bytes(options), tuple(device.product for device in devices))
    with LocalExecutor(maker.store, maker.input_path, watcher, bounds.workers) as executor:
        run_jobs(_jobs(here, maker.make), executor, bounds, watcher)
    return elsewhere


def _make_on_cluster(
    missing: tuple[Step, ...], options: BuildOptions, address: str, watcher: Watcher
) -> tuple[Step, ...]:
    """Ray places the steps: as many at once as its machines take."""
    shared = replace(options, out=options.out.resolve())
    with connect(address) as cluster:
        names = cluster.accelerators()
        here, elsewhere = _split_by_place(missing, {gpu for gpu, name in ACCELERATORS.items() if name in names})
        bounds = Bounds(_MOST_TASKS, _MOST_TASKS << 40, tuple(gpu for gpu in ACCELERATORS for _ in range(_MOST_TASKS)))
        with ClusterExecutor(cluster, partial(make_remotely, shared), watcher) as executor:
            run_jobs(_jobs(here, _made_elsewhere), executor, bounds, watcher)
    return elsewhere


def make_remotely(options: BuildOptions, step: Step, pool: DevicePool, tell: Tell) -> None:
    """On a machine of the cluster: make one artefact in the shared store, if it is not there yet."""
    maker = StepMaker(options, pool)
    sources = tuple(Path(source) for source in step.sources)

    def fill(staging: Path) -> tuple[str, ...]:
        return maker.make(step, Workplace(staging, maker.input_path, sources, tell))

    maker.store.ensure(step, fill, lambda words: tell(0.0, words))


def _made_elsewhere(step: Step, workplace: Workplace) -> tuple[str, ...]:
    raise AssertionError(f"{step.label} is made on the cluster")


class StepMaker:
    """Makes any step with what this machine has: the store below `options.out`, and the devices of `pool`."""

    def __init__(self, options: BuildOptions, pool: DevicePool) -> None:
        self.store = open_store(options)
        logs = StoreRoots(options.out).folder(StepKind.ENGINE) / "logs"
        self._plans = PlanMaker(options.builder, pool.borrow, logs)
        self._makers = {**MAKERS, **REHEARSALS} if options.rehearsal else MAKERS

    def input_path(self, key: str) -> Path:
        """Where the artefact of this key lies, whatever its kind; Failure when it is nowhere."""
        for kind in StepKind:
            path = self.store.path(kind, key)
            if path.is_dir():
                return path
        raise Failure(f"the artefact {key[:12]} is not in the store", "build again", ExitCode.ENVIRONMENT)

    def make(self, step: Step, workplace: Workplace) -> tuple[str, ...]:
        """Fill the staging directory; returns notes."""
        maker = self._makers[step.kind] if _product(step) is None else self._plans.make
        return maker(step, workplace)


def _product(step: Step) -> Gpu | None:
    """The GPU that a step has to be made on; None when any machine will do."""
    if step.kind is not StepKind.ENGINE or step.parameters.get("lane") != Lane.TENSORRT.value:
        return None
    return Gpu(str(step.parameters["gpu"]))


def _split_by_place(steps: tuple[Step, ...], products: Collection[Gpu]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """What can be made with these GPUs, and what needs another one, with all that is made of it."""
    here: list[Step] = []
    elsewhere: list[Step] = []
    lost: set[str] = set()
    for step in steps:
        product = _product(step)
        away = (product is not None and product not in products) or bool(lost & set(step.inputs))
        (elsewhere if away else here).append(step)
        lost |= {step.key} if away else set()
    return tuple(here), tuple(elsewhere)


def _raise_elsewhere(steps: tuple[Step, ...]) -> None:
    if not steps:
        return
    labels = ", ".join(step.label for step in steps)
    wanted = ", ".join(sorted({product.value for product in map(_product, steps) if product is not None}))
    raise Failure(
        f"left for machines with {wanted}, which are not here: {labels}",
        "run the same command there, with --out on a shared file system, or use --executor ray",
        ExitCode.ENVIRONMENT,
    )


def check(recipe: Path, options: BuildOptions, watcher: Watcher) -> None:
    """Read every byte of what was made for a recipe and compare hashes; Failure (exit code 1) lists what differs.

    Artefacts share files by hard links, so those of later kinds are read too where they exist: one bad byte in a
    checkpoint is a bad byte in its repositories.
    """
    drawing = draw_recipe(recipe, StoreRoots(options.out).cache, options.rehearsal)
    store = open_store(options)
    problems: list[Problem] = []
    for step in drawing.blueprint.steps:
        if step.kind in options.kinds or store.receipt(step) is not None:
            found = store.check(step)
            problems.extend(found)
            watcher.told(f"whole  {step.label}" if not found else f"wrong  {step.label}")
    raise_problems(problems, ExitCode.WORK_FAILED)


def _jobs(missing: tuple[Step, ...], make: Maker) -> tuple[Job, ...]:
    return tuple(Job(step, make, step_memory_bytes(step), _product(step)) for step in missing)


def _memory_bytes(options: BuildOptions) -> int:
    """Without a bound given, half of the memory that is free now."""
    return options.memory_bytes or read_host(options.out).available_bytes // 2
