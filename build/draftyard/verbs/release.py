"""Seals a release: verified repositories with all that an appliance needs, listed file by file, and signed."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from draftyard import __version__
from draftyard.doors.config_files import read_config
from draftyard.doors.distributions import lock_file
from draftyard.doors.policy_files import read_policy
from draftyard.doors.recipe_files import read_toolchain
from draftyard.doors.release_archive import write_archive
from draftyard.doors.release_files import (
    SealedFile,
    newest_change,
    read_manifest,
    sealed_file,
    write_directory,
    write_manifest,
)
from draftyard.doors.signatures import sign
from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.artifact import RECEIPT_NAME, Receipt
from draftyard.nouns.blueprint import Step, Variant
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure, raise_problems
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.sealed_release import (
    RELEASE_FORMAT,
    SIGNATURE_NAMESPACE,
    EngineFacts,
    Release,
    ReleasedImage,
    ReleasedVariant,
)
from draftyard.rules.release_engines import engine_facts
from draftyard.rules.release_names import listing_problems
from draftyard.rules.triton_repository import DRAFT_ENGINE_PLACE, ENGINE_PLACE
from draftyard.verbs.compile_plans import FACTS_NAME
from draftyard.verbs.drawing import Drawing
from draftyard.verbs.perf import Show
from draftyard.verbs.release_contents import (
    Parts,
    chosen_steps,
    image_of,
    json_text,
    known_distributions,
    licence_texts,
    missing_artefacts,
    prompt_files,
    receipt_files,
    recipe_files,
    report_files,
    repository_files,
    sbom_file,
    wheel_files,
)
from draftyard.verbs.repositories import Packaged, packaged


@dataclass(frozen=True, slots=True)
class ReleaseOptions:
    """What is sealed and where to. `output` (a directory) and `archive` (a file) exclude each other; with neither, a
    directory below `out`. `report` is where `verify` left its report (None: its usual place, if there is one).

    `wheels` is a directory with the wheels of `requirements`, the lock file (None: the one of a checkout). Without
    `key` the release is unsigned, and says so.
    """

    out: Path
    variants: tuple[str, ...] = ()
    policy: Path | None = None
    report: Path | None = None
    wheels: Path | None = None
    requirements: Path | None = None
    image: str | None = None
    image_archive: Path | None = None
    key: Path | None = None
    output: Path | None = None
    archive: Path | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """A release that was sealed, or (`made` false) was there before with the same bytes."""

    path: Path
    release: Release
    made: bool


def release(recipe: Path, options: ReleaseOptions, tell: Show) -> Sealed:
    """Seal the packaged variants of a recipe. Failure names what is not there, changed, or would leave the bundle.

    The same store, options and installed distributions give the same bytes.
    """
    policy = None if options.policy is None else read_policy(options.policy)
    image = image_of(options.image, options.image_archive)
    drawing, found = packaged(recipe, options.out, options.variants, policy)
    store = Store(StoreRoots(options.out), {}, ())
    steps = chosen_steps(drawing.blueprint, found)
    for label in missing_artefacts(steps, store):
        tell(f"{label} is not in the store any more: its receipt is left out")
    receipts = {one.variant.name: _receipt(store, drawing, one) for one in found}
    files = _gather(drawing, found, receipts, steps, store, options, image, tell)
    manifest = Release(
        release_format=RELEASE_FORMAT,
        name=drawing.blueprint.recipe_name,
        tool_version=__version__,
        built_at=newest_change([store.path(step.kind, step.key) / RECEIPT_NAME for step in steps]),
        signed=options.key is not None,
        toolchain=read_toolchain(),
        image=image,
        variants=tuple(_variant(one, receipts[one.variant.name]) for one in found),
        files=tuple(one.record for one in files),
    )
    raise_problems(listing_problems(manifest))
    return _write(manifest, files, options)


def _gather(
    drawing: Drawing,
    found: tuple[Packaged, ...],
    receipts: dict[str, Receipt],
    steps: tuple[Step, ...],
    store: Store,
    options: ReleaseOptions,
    image: ReleasedImage | None,
    tell: Show,
) -> tuple[SealedFile, ...]:
    """Every file but the manifest, sorted by path."""
    files = [file for one in found for file in repository_files(one, receipts[one.variant.name])]
    files += receipt_files(steps, store)
    files += recipe_files(drawing, steps, tuple(one.variant.name for one in found))
    files += prompt_files(drawing)
    report = options.report or options.out / "deploy" / "out" / drawing.blueprint.recipe_name
    if options.report is not None or (report / "report.json").is_file():
        files += report_files(report, found)
    else:
        tell("there is no report: draftyard verify makes one, and a release without it proves nothing")
    lock = options.requirements or lock_file()
    distributions = known_distributions(lock)
    wheels, wheel_list = ((), ()) if options.wheels is None else wheel_files(options.wheels, lock)
    files += wheel_list
    files += licence_texts(steps, distributions)
    toolchain: dict[str, Json] = read_toolchain().model_dump(mode="json")
    files.append(sbom_file(drawing, toolchain, Parts(image, wheels, distributions)))
    if options.image_archive is not None and image is not None and image.archive is not None:
        files.append(sealed_file(image.archive, options.image_archive))
    return tuple(sorted(files, key=lambda one: one.record.path))


def _write(manifest: Release, files: tuple[SealedFile, ...], options: ReleaseOptions) -> Sealed:
    data = json_text(manifest.model_dump(mode="json")).encode()
    signature = None if options.key is None else sign(data, options.key, SIGNATURE_NAMESPACE)
    if options.archive is not None:
        if options.output is not None:
            raise Failure("--output and --archive exclude each other", "give one of them")
        if options.archive.exists():
            raise Failure(f"{options.archive} exists already", "remove it first, or choose another name")
        write_archive(options.archive, data, signature, files)
        return Sealed(options.archive, manifest, True)
    name = f"{manifest.name}-{sha256(data).hexdigest()[:12]}"
    directory = options.output or options.out / "deploy" / "out" / "releases" / name
    if directory.exists():
        if directory.is_dir() and any(directory.iterdir()):
            there, before = read_manifest(directory)
            if there == data:
                write_manifest(directory, data, signature)
                return Sealed(directory, manifest, before != signature)
        raise Failure(f"{directory} exists already and is another release", "remove it first, or choose another name")
    write_directory(directory, data, signature, files)
    return Sealed(directory, manifest, True)


def _receipt(store: Store, drawing: Drawing, one: Packaged) -> Receipt:
    receipt = store.receipt(drawing.blueprint.step(one.variant.repository_key))
    if receipt is None:
        raise Failure(f"the repository of {one.variant.name} has gone", "package it again", ExitCode.ENVIRONMENT)
    return receipt


def _variant(one: Packaged, receipt: Receipt) -> ReleasedVariant:
    variant: Variant = one.variant
    places = [place for place in (ENGINE_PLACE, DRAFT_ENGINE_PLACE) if (one.repository / place).is_dir()]
    engines = tuple(_engine(one, place, receipt) for place in places)
    return ReleasedVariant(
        name=variant.name,
        lane=variant.lane,
        speculator=variant.speculator,
        precision=variant.precision,
        gpu=variant.gpu,
        gpus=0 if variant.gpu is Gpu.CPU else max(engine.ranks for engine in engines),
        repository=f"repositories/{variant.name}",
        repository_key=variant.repository_key,
        keys=variant.step_keys,
        engines=engines,
    )


def _engine(one: Packaged, place: str, receipt: Receipt) -> EngineFacts:
    directory = one.repository / place
    facts = directory / FACTS_NAME
    size = sum(record.size_bytes for record in receipt.files if record.path.startswith(f"{place}/"))
    built = read_config(facts) if facts.is_file() else {}
    return engine_facts(f"repositories/{one.variant.name}/{place}", read_config(directory / "config.json"), built, size)
