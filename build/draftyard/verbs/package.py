"""Makes a Triton repository: the engine and the tokenizer, five model configurations, and the guests between them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from draftyard.doors.config_files import read_config
from draftyard.doors.policy_files import write_policy
from draftyard.doors.repository_files import (
    config_texts,
    copy_tokenizer,
    link_engine,
    read_repository,
    write_model_config,
)
from draftyard.doors.shipped_files import copy_guest, guests_digest
from draftyard.doors.tokenizer_files import read_tokenizer
from draftyard.nouns.blueprint import Step
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems
from draftyard.nouns.repository import ModelConfig, ModelName, Repository, RepositoryPlan
from draftyard.rules.triton_checks import placeholder_problems, repository_problems
from draftyard.rules.triton_engine import draft_engine_problems, engine_problems, version_problems
from draftyard.rules.triton_repository import (
    DRAFT_ENGINE_PLACE,
    ENGINE_PLACE,
    POLICY_PLACE,
    TOKENIZER_PLACE,
    draw_repository,
)
from draftyard.verbs.making import Workplace

GUESTS = (ModelName.PREPROCESSING, ModelName.POSTPROCESSING, ModelName.ENTRY)


def make_repository(step: Step, workplace: Workplace) -> tuple[str, ...]:
    """Fill the staging directory with `models/`, `tokenizer/` and `engines/`; returns notes.

    Inputs of the step: the key of the engine, that of a draft's engine where it is one of its own, and the digest of
    the tokenizer; its source is the target's directory.
    Failure when the engine is incomplete or not the planned one, when tokenizer or guests changed since, or when the
    result is not what a server loads.
    """
    plan = RepositoryPlan.model_validate(step.parameters["plan"])
    if plan.guests_digest != guests_digest():
        raise Failure("the guests in triton_repo/models changed since the plan was made", "plan again")
    staging = workplace.staging
    linked: list[str] = []
    for key, place, check in _engines(plan, step):
        linked += _install_engine(plan, step.toolchain, workplace.input_path(key), staging / place, check)
    workplace.progress(0.4, "engine")
    copied = _install_tokenizer(step, workplace.source_paths[0], staging)
    workplace.progress(0.6, "tokenizer")
    drawn = draw_repository(plan)
    for guest in GUESTS:
        copy_guest(guest.value, staging / "models" / guest.value / "1")
    for model in drawn.models:
        write_model_config(staging / "models", model)
    if plan.policy is not None:
        write_policy(staging / POLICY_PLACE, plan.policy)
    check_repository(staging, drawn)
    workplace.progress(1.0, "models")
    return (
        f"{len(linked)} engine files linked",
        f"tokenizer: {', '.join(copied)}",
        f"{len(drawn.models)} models, entry {ModelName.ENTRY}",
    )


def check_repository(repository: Path, drawn: Repository) -> None:
    """Read everything back: parsed files equal the values they were made of, and nothing in them would fail.

    Failure lists all problems together.
    """
    problems = list(placeholder_problems(config_texts(repository)))
    found = read_repository(repository)
    problems.extend(repository_problems(found))
    problems.extend(_difference_problems(found, drawn))
    problems.extend(_path_problems(repository, found))
    raise_problems(problems, ExitCode.WORK_FAILED)


EngineCheck: TypeAlias = Callable[[RepositoryPlan, Mapping[str, Json], Collection[str]], tuple[Problem, ...]]


def _engines(plan: RepositoryPlan, step: Step) -> Iterable[tuple[str, str, EngineCheck]]:
    """The keys of the engines, where each goes in the repository, and what it has to be."""
    yield step.inputs[0], ENGINE_PLACE, engine_problems
    if plan.draft_ranks:
        yield step.inputs[1], DRAFT_ENGINE_PLACE, draft_engine_problems


def _install_engine(
    plan: RepositoryPlan, toolchain: Mapping[str, Json], engine: Path, place: Path, check: EngineCheck
) -> tuple[str, ...]:
    config = read_config(engine / "config.json")
    files = [path.relative_to(engine).as_posix() for path in engine.rglob("*") if path.is_file()]
    raise_problems([*check(plan, config, files), *version_problems(config, toolchain)])
    return link_engine(engine, place)


def _install_tokenizer(step: Step, source: Path, staging: Path) -> tuple[str, ...]:
    """Copy first, then compare the copy's digest: what was checked is what is served."""
    destination = staging / TOKENIZER_PLACE
    copied = copy_tokenizer(source, destination)
    settings = destination / "tokenizer_config.json"
    facts = read_tokenizer(destination, read_config(settings) if settings.is_file() else {})
    if facts.digest not in step.inputs:
        raise Failure(
            "the tokenizer changed since the plan was made", "plan again, and leave the model alone meanwhile"
        )
    return copied


def _difference_problems(found: Repository, drawn: Repository) -> Iterable[Problem]:
    by_name = {model.name: model for model in found.models}
    for model in drawn.models:
        if by_name.get(model.name) != model:
            yield Problem(f"{model.name}: config.pbtxt does not say what was planned", "report this: a format error")


def _path_problems(repository: Path, found: Repository) -> Iterable[Problem]:
    """Paths in parameters are relative to the repository, so they hold wherever it is mounted."""
    for model in found.models:
        for key, value in _paths(model):
            if not (repository / value).is_dir():
                yield Problem(f"{model.name}: {key} names {value}, which is no folder", "generate the repository again")


def _paths(model: ModelConfig) -> Iterable[tuple[str, str]]:
    return ((key, value) for key, value in model.parameters if key in ("tokenizer_dir", "gpt_model_path"))
