"""Makes what a recipe asks for: checkpoints, engines and, when asked to package, repositories."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.policy_files import read_policy
from draftyard.doors.recipe_files import remember
from draftyard.doors.store import StoreRoots
from draftyard.nouns.blueprint import Step
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems
from draftyard.nouns.policy import Policy
from draftyard.verbs.build_choices import BuildOptions, build_product, open_store
from draftyard.verbs.drawing import Drawing, draw_recipe
from draftyard.verbs.running import Watcher


@dataclass(frozen=True, slots=True)
class Built:
    """One artefact that exists now."""

    label: str
    kind: str
    key: str
    path: Path


def build(recipe: Path, options: BuildOptions, watcher: Watcher) -> tuple[Drawing, tuple[Built, ...]]:
    """Make every missing artefact of a recipe, in order, side by side where possible; what is there stays.

    Failure when recipe, models or their combination are wrong (nothing is written then), when a step fails, or when
    steps are left for hosts with other GPUs; what was finished until then stays, and the next build goes on from there.
    """
    roots = StoreRoots(options.out)
    drawing = draw_recipe(recipe, roots.cache, options.rehearsal, _policy(options))
    for note in drawing.notes:
        watcher.told(note)
    store = open_store(options)
    steps = tuple(step for step in drawing.blueprint.steps if step.kind in options.kinds)
    missing = tuple(step for step in steps if store.receipt(step) is None)
    for step in steps:
        if step not in missing:
            watcher.finished(step, False, 0.0)
    store.sweep()
    elsewhere: tuple[Step, ...] = ()
    if missing:
        from draftyard.verbs.step_making import make_missing  # with all the makers: half a second of imports

        elsewhere = make_missing(missing, options, watcher)
    remember(roots.by_recipe, drawing.blueprint)
    _raise_elsewhere(elsewhere)
    return drawing, tuple(
        Built(step.label, step.kind.value, step.key, store.path(step.kind, step.key)) for step in steps
    )


def _policy(options: BuildOptions) -> Policy | None:
    return None if options.policy is None else read_policy(options.policy)


def _raise_elsewhere(steps: tuple[Step, ...]) -> None:
    if not steps:
        return
    labels = ", ".join(step.label for step in steps)
    wanted = ", ".join(sorted({product.value for product in map(build_product, steps) if product is not None}))
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
    drawing = draw_recipe(recipe, StoreRoots(options.out).cache, options.rehearsal, _policy(options))
    store = open_store(options)
    problems: list[Problem] = []
    for step in drawing.blueprint.steps:
        if step.kind in options.kinds or store.receipt(step) is not None:
            found = store.check(step)
            problems.extend(found)
            watcher.told(f"whole  {step.label}" if not found else f"wrong  {step.label}")
    raise_problems(problems, ExitCode.WORK_FAILED)
