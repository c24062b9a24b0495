"""Makes the missing steps of a blueprint, here or on a cluster; imported only when something is missing."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from draftyard.doors.host import read_host
from draftyard.doors.ray_cluster import Tell, connect
from draftyard.doors.store import StoreRoots
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane
from draftyard.verbs.build_choices import BuildOptions, build_product, open_store
from draftyard.verbs.build_devices import DevicePool, find_devices
from draftyard.verbs.calibrate_scales import make_calibration
from draftyard.verbs.cluster_running import ACCELERATORS, ClusterExecutor
from draftyard.verbs.compile import make_engine
from draftyard.verbs.compile_llmapi import make_llmapi_engine
from draftyard.verbs.compile_plans import PlanMaker
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.making import Maker, Workplace
from draftyard.verbs.package import make_repository
from draftyard.verbs.rehearsal import rehearse_calibration, rehearse_checkpoint
from draftyard.verbs.running import Bounds, Job, LocalExecutor, Watcher, run_jobs, step_memory_bytes

_MOST_TASKS = 256
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


def make_missing(missing: tuple[Step, ...], options: BuildOptions, watcher: Watcher) -> tuple[Step, ...]:
    """Make what can be made here, or on the cluster; returns the steps that need a GPU which is not there."""
    if options.cluster is not None:
        return _make_on_cluster(missing, options, options.cluster, watcher)
    devices = find_devices() if any(build_product(step) for step in missing) else ()
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
        maker = self._makers[step.kind] if build_product(step) is None else self._plans.make
        if step.kind is StepKind.ENGINE and step.parameters.get("lane") == Lane.LLMAPI.value:
            maker = make_llmapi_engine
        return maker(step, workplace)


def _split_by_place(steps: tuple[Step, ...], products: Collection[Gpu]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """What can be made with these GPUs, and what needs another one, with all that is made of it."""
    here: list[Step] = []
    elsewhere: list[Step] = []
    lost: set[str] = set()
    for step in steps:
        product = build_product(step)
        away = (product is not None and product not in products) or bool(lost & set(step.inputs))
        (elsewhere if away else here).append(step)
        lost |= {step.key} if away else set()
    return tuple(here), tuple(elsewhere)


def _jobs(missing: tuple[Step, ...], make: Maker) -> tuple[Job, ...]:
    return tuple(Job(step, make, step_memory_bytes(step), build_product(step)) for step in missing)


def _memory_bytes(options: BuildOptions) -> int:
    """Without a bound given, half of the memory that is free now."""
    return options.memory_bytes or read_host(options.out).available_bytes // 2
