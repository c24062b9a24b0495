"""Verifies what was packaged for a recipe, with the limits and gates the recipe names."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.nouns.report import Report
from draftyard.nouns.repository import RepositoryPlan
from draftyard.verbs.drawing import Drawing
from draftyard.verbs.perf import Show
from draftyard.verbs.render import render
from draftyard.verbs.repositories import Packaged, packaged
from draftyard.verbs.smoke import ServedVariant
from draftyard.verbs.verify import verify


@dataclass(frozen=True, slots=True)
class ProveOptions:
    """Where repositories lie and where evidence goes; `again` measures anew, `variants` empty means all."""

    out: Path
    artifact_directory: Path | None
    again: bool
    variants: tuple[str, ...]


def prove(recipe: Path, options: ProveOptions, show: Show) -> tuple[Report, Path]:
    """Serve, check and measure each variant; the report holds the exit code. Failure as for `verify`.

    Returns the report and the page made of it, which lies beside `report.json` and the raw evidence.
    """
    drawing, found = packaged(recipe, options.out, options.variants)
    settings = drawing.file.recipe
    directory = options.artifact_directory or options.out / "deploy" / "out" / settings.name
    place = "" if options.out == Path() else f" --out {options.out}"
    report = verify(
        repositories=tuple(_served(one, drawing) for one in found),
        verify=settings.verify,
        prompts=drawing.file.resolve(settings.verify.prompts),
        artifact_directory=directory,
        reuse_evidence=not options.again,
        show=show,
        reproduce=(f"draftyard package {recipe}{place}", f"draftyard verify {recipe}{place} --again"),
    )
    return report, render(directory / "report.json", directory / "report.html")


def _served(one: Packaged, drawing: Drawing) -> ServedVariant:
    """Limits and draft length as the repository itself was planned."""
    step = drawing.blueprint.step(one.variant.repository_key)
    plan = RepositoryPlan.model_validate(step.parameters["plan"])
    return ServedVariant(
        name=one.variant.name,
        speculator=one.variant.speculator,
        repository_key=one.variant.repository_key,
        repository=one.repository,
        max_input_len=plan.max_input_len,
        max_seq_len=plan.max_seq_len,
        max_draft_len=plan.max_draft_len,
    )
