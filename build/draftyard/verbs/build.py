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
from draftyard.nouns.errors import ExitCode, Problem, raise_problems
from draftyard.verbs.compile import make_engine
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.drawing import Drawing, draw_recipe
from draftyard.verbs.making import Maker
from draftyard.verbs.package import make_repository
from draftyard.verbs.running import Bounds, Job, Watcher, run_jobs, step_memory_bytes

MAKERS: Mapping[StepKind, Maker] = {
    StepKind.CHECKPOINT: make_checkpoint,
    StepKind.ENGINE: make_engine,
    StepKind.REPOSITORY: make_repository,
}
ENGINES = (StepKind.CHECKPOINT, StepKind.ENGINE)
REPOSITORIES = (*ENGINES, StepKind.REPOSITORY)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Where to, how far, how much at once; `call` is the command as typed, for the receipts."""

    out: Path
    kinds: tuple[StepKind, ...] = REPOSITORIES
    workers: int = 2
    memory_bytes: int | None = None
    call: tuple[str, ...] = ()


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

    Failure when recipe, models or their combination are wrong (nothing is written then), or when a step fails; what was
    finished until then stays, and the next build goes on from there.
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
    kinds = {step.key: step.kind for step in drawing.blueprint.steps}
    run_jobs(_jobs(missing, drawing), store, lambda key: store.path(kinds[key], key), _bounds(options), watcher)
    remember(roots.by_recipe, drawing.blueprint)
    return drawing, tuple(
        Built(step.label, step.kind.value, step.key, store.path(step.kind, step.key)) for step in steps
    )


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


def _jobs(missing: tuple[Step, ...], drawing: Drawing) -> tuple[Job, ...]:
    sources = {source.path: source for source in (drawing.target, *drawing.drafts)}

    def largest(path: str) -> int:
        return max(tensor.size_bytes for tensor in sources[path].tensors)

    return tuple(Job(step, MAKERS[step.kind], step_memory_bytes(step, largest)) for step in missing)


def _bounds(options: BuildOptions) -> Bounds:
    """Without a bound given, half of the memory that is free now."""
    return Bounds(options.workers, options.memory_bytes or read_host(options.out).available_bytes // 2)
