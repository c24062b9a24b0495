"""Finds the repositories that were packaged for a recipe."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.blueprint import StepKind, Variant
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems
from draftyard.nouns.policy import Policy
from draftyard.verbs.drawing import Drawing, draw_recipe


@dataclass(frozen=True, slots=True)
class Packaged:
    """A variant of a recipe and the directory of its repository."""

    variant: Variant
    repository: Path


def packaged(
    recipe: Path, out: Path, names: tuple[str, ...] = (), policy: Policy | None = None
) -> tuple[Drawing, tuple[Packaged, ...]]:
    """The repositories of the variants `names` (all when empty), in the recipe's order, as packaged with `policy`.

    Failure when a name is unknown (exit code 2) or a repository was not made yet (exit code 3).
    """
    drawing = draw_recipe(recipe, StoreRoots(out).cache, policy=policy)
    known = [variant.name for variant in drawing.blueprint.variants]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Failure(f"the recipe has no variant {', '.join(unknown)}", f"choose from {', '.join(known)}")
    chosen = tuple(variant for variant in drawing.blueprint.variants if not names or variant.name in names)
    return drawing, _locate(drawing, chosen, recipe, out)


def repository_to_serve(given: Path, out: Path, name: str | None) -> Path:
    """The directory itself when `given` is one, else the repository of a recipe's variant.

    Failure when a recipe has several variants and none is named.
    """
    if given.is_dir():
        if name is not None:
            raise Failure("--variant goes with a recipe, not with a directory", "leave --variant out")
        return given
    if name is not None:
        return packaged(given, out, (name,))[1][0].repository
    drawing = draw_recipe(given, StoreRoots(out).cache)
    variants = drawing.blueprint.variants
    if len(variants) > 1:
        names = ", ".join(variant.name for variant in variants)
        raise Failure("the recipe has several variants", f"choose one with --variant: {names}")
    return _locate(drawing, variants, given, out)[0].repository


def _locate(drawing: Drawing, chosen: tuple[Variant, ...], recipe: Path, out: Path) -> tuple[Packaged, ...]:
    store = Store(StoreRoots(out), {}, ())
    raise_problems(
        [
            Problem(f"{variant.name} has no Triton repository", "serve its engine with trtllm-serve; see its receipt")
            for variant in chosen
            if not variant.packaged
        ]
    )
    hint = f"run: draftyard package {recipe}" + ("" if out == Path() else f" --out {out}")
    missing = [
        Problem(f"the repository of {variant.name} was not made yet", hint)
        for variant in chosen
        if store.receipt(drawing.blueprint.step(variant.repository_key)) is None
    ]
    raise_problems(missing, ExitCode.ENVIRONMENT)
    return tuple(Packaged(variant, store.path(StepKind.REPOSITORY, variant.repository_key)) for variant in chosen)
