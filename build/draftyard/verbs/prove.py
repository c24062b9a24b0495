"""Verifies what was packaged for a recipe, with the limits and gates the recipe names."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.policy_files import read_policy
from draftyard.nouns.errors import Failure
from draftyard.nouns.report import Report
from draftyard.nouns.repository import RepositoryPlan
from draftyard.rules.draw import ways
from draftyard.verbs.drawing import Drawing
from draftyard.verbs.perf import Show
from draftyard.verbs.render import render
from draftyard.verbs.repositories import Packaged, packaged
from draftyard.verbs.smoke import ServedVariant
from draftyard.verbs.verify import Effort, ServerStarter, ServerUrls, running_server, serve_embedded, verify

DEFAULT_EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class ProveOptions:
    """Where repositories lie and where evidence goes; `again` measures anew, `variants` empty means all.

    `policy` is the file that the repositories were packaged with. `url` (gRPC, host:port) is a server that serves the
    one variant that is named, and `metrics_url` where its metrics are.
    """

    out: Path
    artifact_directory: Path | None
    again: bool
    variants: tuple[str, ...]
    effort: Effort = DEFAULT_EFFORT
    policy: Path | None = None
    url: str | None = None
    metrics_url: str | None = None


def prove(recipe: Path, options: ProveOptions, show: Show) -> tuple[Report, Path]:
    """Serve, check and measure each variant; the report holds the exit code. Failure as for `verify`.

    Returns the report and the page made of it, which lies beside `report.json` and the raw evidence.
    """
    policy = None if options.policy is None else read_policy(options.policy)
    drawing, found = packaged(recipe, options.out, options.variants, policy)
    if options.url is not None and len(found) != 1:
        raise Failure(
            "a running server serves one variant, and the recipe has several",
            f"name it with --variant: {', '.join(one.variant.name for one in found)}",
        )
    serve: ServerStarter = serve_embedded
    if options.url is not None:
        serve = running_server(ServerUrls(options.url, options.metrics_url or ""))
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
        serve=serve,
        effort=options.effort,
        reproduce=_reproduce(recipe, place, options),
    )
    return report, render(directory / "report.json", directory / "report.html")


def _reproduce(recipe: Path, place: str, options: ProveOptions) -> tuple[str, str]:
    policy = "" if options.policy is None else f" --policy {options.policy}"
    minutes = "" if options.effort.minutes is None else f" --minutes {options.effort.minutes:g}"
    return (
        f"draftyard package {recipe}{place}{policy}",
        f"draftyard verify {recipe}{place}{policy} --profile {options.effort.profile.value}{minutes} --again",
    )


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
        draft_depth=_depth(one, drawing),
        max_batch_size=plan.max_batch_size,
        policy=plan.policy,
        target=drawing.target.digest[:16],
        precision=one.variant.precision.value,
    )


def _depth(one: Packaged, drawing: Drawing) -> int | None:
    """Tokens that a step of this variant can accept; its name begins with that of its way to decode."""
    found = {way.name: way.speculator for way in ways(drawing.file.recipe, drawing.drafts, drawing.heads)}
    speculator = found[one.variant.name.split("-")[0]]
    return None if speculator is None else speculator.draft_depth
