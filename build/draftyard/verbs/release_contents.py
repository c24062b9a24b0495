"""Gathers what goes into a release: repositories, receipts, report, prompts, licences, wheels and the list of parts."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from draftyard import __version__
from draftyard.doors.config_files import read_config
from draftyard.doors.distributions import (
    Distribution,
    Wheel,
    licence_files,
    locked_versions,
    needed_distributions,
    own_licence,
    read_wheels,
)
from draftyard.doors.prompts import pack_files
from draftyard.doors.release_files import SealedFile, inside, sealed_file, sealed_text
from draftyard.doors.report_files import read_report
from draftyard.doors.store import Store
from draftyard.nouns.artifact import Receipt
from draftyard.nouns.blueprint import Blueprint, Step, StepKind
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems
from draftyard.nouns.report import Report
from draftyard.nouns.sealed_release import ReleasedImage
from draftyard.rules.draw import draft_speculators
from draftyard.rules.draw_heads import head_speculators
from draftyard.rules.redaction import redacted, redacted_json
from draftyard.rules.sbom import Component, bill_of_materials, distribution_purl
from draftyard.verbs.compile_plans import FACTS_NAME
from draftyard.verbs.drawing import Drawing
from draftyard.verbs.repositories import Packaged

WHEELS = "wheels"
_EVIDENCE = ("acceptance.json", "junit.xml")
_OWN_FACTS = ("gpu_uuid",)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the list of parts names besides Python distributions."""

    image: ReleasedImage | None
    wheels: tuple[Wheel, ...]
    distributions: tuple[Distribution, ...]


def repository_files(one: Packaged, receipt: Receipt) -> Iterator[SealedFile]:
    """Every file of a repository below `repositories/VARIANT`; Failure for a link that leads out of it.

    What an engine was built with loses the places of the building machine and the identity of its GPU.
    """
    for record in receipt.files:
        source = inside(one.repository, record.path)
        place = f"repositories/{one.variant.name}/{record.path}"
        if source.name == FACTS_NAME and "engines" in record.path.split("/"):
            facts = {key: value for key, value in read_config(source).items() if key not in _OWN_FACTS}
            yield sealed_text(place, json_text(redacted_json(facts)))
        else:
            yield sealed_file(place, source, record.digest)


def receipt_files(steps: tuple[Step, ...], store: Store) -> Iterator[SealedFile]:
    """The receipts of steps whose artefacts are in the store, without places of this machine."""
    for step in steps:
        receipt = store.receipt(step)
        if receipt is not None:
            document: Mapping[str, Json] = receipt.model_dump(mode="json")
            yield sealed_text(f"receipts/{step.kind.value}-{step.key[:16]}.json", json_text(redacted_json(document)))


def recipe_files(drawing: Drawing, steps: tuple[Step, ...], names: tuple[str, ...]) -> Iterator[SealedFile]:
    """The recipe as it was written, and what was drawn from it for these variants."""
    yield sealed_text("recipe.yaml", redacted(drawing.file.path.read_text(encoding="utf-8")))
    yield sealed_text("blueprint.json", json_text(redacted_json(_blueprint(drawing.blueprint, steps, names))))


def prompt_files(drawing: Drawing) -> Iterator[SealedFile]:
    """The prompts that the recipe verifies with, where they are there."""
    path = drawing.file.resolve(drawing.file.recipe.verify.prompts)
    if path.exists():
        for file in pack_files(path):
            yield sealed_text(f"prompts/{file.name}", file.read_bytes())


def report_files(directory: Path, found: tuple[Packaged, ...]) -> Iterator[SealedFile]:
    """A report with its golden acceptance and policies, where it is of these very repositories.

    Failure when it is of others: a release carries no figures of something else.
    """
    report = read_report(directory / "report.json")
    keys = {one.name: one.repository_key for one in report.variants}
    others = [
        Problem(
            f"the report in {directory} was not made with this {one.variant.name}",
            "verify it again, or name another --artifact-dir",
        )
        for one in found
        if keys.get(one.variant.name) != one.variant.repository_key
    ]
    raise_problems(others)
    document: Mapping[str, Json] = report.model_dump(mode="json")
    yield sealed_text("report/report.json", json_text(redacted_json(document)))
    for name in (*_EVIDENCE, *_policies(report)):
        if (directory / name).is_file():
            yield sealed_text(f"report/{name}", redacted((directory / name).read_text(encoding="utf-8")))


def wheel_files(directory: Path, lock: Path | None) -> tuple[tuple[Wheel, ...], tuple[SealedFile, ...]]:
    """The wheels and the file that installs exactly these; Failure lists what the lock file has and `directory` not."""
    wheels = read_wheels(directory)
    versions = {wheel.name: wheel.version for wheel in wheels}
    wanted = {"draftyard": __version__, **({} if lock is None else locked_versions(lock))}
    missing = [
        Problem(f"no wheel of {name} {version}", f"put it into {directory}")
        for name, version in wanted.items()
        if not _same_version(versions.get(name, ""), version)
    ]
    raise_problems(missing, ExitCode.ENVIRONMENT)
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels]
    files = [sealed_file(f"{WHEELS}/{wheel.path.name}", wheel.path) for wheel in wheels]
    return wheels, (*files, sealed_text(f"{WHEELS}/requirements.txt", "".join(lines)))


def licence_texts(steps: tuple[Step, ...], distributions: tuple[Distribution, ...]) -> Iterator[SealedFile]:
    """This package's licence, those of the models, and those of installed distributions, as their files are."""
    own = own_licence()
    if own is not None:
        yield sealed_text("licences/draftyard/LICENSE", own.read_bytes())
    for source in sorted({Path(one) for step in steps for one in step.sources}):
        for file in licence_files(source):
            yield sealed_text(f"licences/models/{source.name}/{file.name}", file.read_bytes())
    for one in distributions:
        for number, file in enumerate(one.licence_files):
            # A distribution may bring several files of one name from different folders.
            name = file.name if number == 0 else f"{number}-{file.name}"
            yield sealed_text(f"licences/{one.name}-{one.version}/{name}", file.read_bytes())


def sbom_file(drawing: Drawing, toolchain: Mapping[str, Json], parts: Parts) -> SealedFile:
    """`sbom.json`: this package, distributions, models, image and libraries that the engines are bound to."""
    sums = {wheel.name: wheel.sha256 for wheel in parts.wheels}
    components = [
        Component(
            kind="library",
            name=one.name,
            version=one.version,
            licence=one.licence,
            sha256=sums.get(distribution_purl(one.name, "").removeprefix("pkg:pypi/").rstrip("@"), ""),
            purl=distribution_purl(one.name, one.version),
            spdx=one.spdx,
        )
        for one in parts.distributions
    ]
    components += [Component("machine-learning-model", name, digest) for name, digest in sorted(_models(drawing))]
    if parts.image is not None:
        components.append(Component("container", parts.image.reference, parts.image.digest or "unpinned"))
    components += [
        Component("library", name, str(toolchain[key]))
        for name, key in (("TensorRT-LLM", "tensorrt_llm"), ("TensorRT", "tensorrt"), ("CUDA", "cuda"))
    ]
    root = Component(
        "application", "draftyard", __version__, "Apache-2.0", purl=f"pkg:pypi/draftyard@{__version__}", spdx=True
    )
    return sealed_text("sbom.json", json_text(bill_of_materials(root, components)))


def known_distributions(lock: Path | None) -> tuple[Distribution, ...]:
    """What of the lock file is installed here."""
    return needed_distributions(lock)


def json_text(value: Json) -> str:
    """Indented, sorted, the same bytes for the same value."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _blueprint(blueprint: Blueprint, steps: tuple[Step, ...], names: tuple[str, ...]) -> Mapping[str, Json]:
    return {
        "recipe": blueprint.recipe_name,
        "variants": {one.name: list(one.step_keys) for one in blueprint.variants if one.name in names},
        "steps": [
            {
                "kind": step.kind.value,
                "label": step.label,
                "key": step.key,
                "parameters": step.parameters,
                "inputs": list(step.inputs),
                "toolchain": step.toolchain,
            }
            for step in steps
        ],
    }


def _models(drawing: Drawing) -> set[tuple[str, str]]:
    """Name of the directory and digest of each model that the recipe names."""
    recipe = drawing.file.recipe
    paths = [recipe.target.path, *(one.path for one in draft_speculators(recipe))]
    found = {
        (Path(path).name, source.digest[:16])
        for path, source in zip(paths, (drawing.target, *drawing.drafts), strict=True)
    }
    heads = zip(head_speculators(recipe), drawing.heads, strict=True)
    return found | {(Path(one.path).name, source.digest[:16]) for one, source in heads}


def _policies(report: Report) -> tuple[str, ...]:
    return tuple(sorted(one.policy.path for one in report.variants if one.policy is not None))


def _same_version(found: str, wanted: str) -> bool:
    """A local part ("+cpu") only tells how it was built."""
    return found == wanted or (bool(wanted) and found.partition("+")[0] == wanted)


def chosen_steps(blueprint: Blueprint, found: tuple[Packaged, ...]) -> tuple[Step, ...]:
    """The steps that these variants are made of, in the order of the blueprint, each once."""
    keys = {key for one in found for key in one.variant.step_keys}
    return tuple(step for step in blueprint.steps if step.key in keys)


def missing_artefacts(steps: tuple[Step, ...], store: Store) -> tuple[str, ...]:
    """Labels of steps whose artefact is not in the store any more, so that their receipt cannot be sealed."""
    return tuple(step.label for step in steps if step.kind is not StepKind.REPOSITORY and store.receipt(step) is None)


def image_of(reference: str | None, archive: Path | None) -> ReleasedImage | None:
    """The image by its reference; Failure for one without a digest, which could be another image tomorrow."""
    if reference is None:
        if archive is not None:
            raise Failure("an image archive without the image it holds", "give --image NAME@sha256:DIGEST")
        return None
    name, _, digest = reference.partition("@")
    if not digest.startswith("sha256:") or len(digest) != 71:
        words = f"{reference} names no digest: the same name may be another image tomorrow"
        raise Failure(words, "give NAME@sha256:DIGEST; docker image inspect shows it as RepoDigests")
    return ReleasedImage(reference=name, digest=digest, archive=None if archive is None else f"images/{archive.name}")
