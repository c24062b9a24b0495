"""Reads a recipe and the pinned toolchain, and remembers what was built last for a recipe."""

import json
import os
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from draftyard.doors.shipped_files import PACKAGE_DIRECTORY
from draftyard.doors.yaml_text import YamlText, parse_yaml
from draftyard.nouns.blueprint import Blueprint, Step, StepKind
from draftyard.nouns.errors import ExitCode, Failure, raise_problems
from draftyard.nouns.toolchain import Toolchain

_LARGEST_BYTES = 1 << 20


class StepMemory(BaseModel):
    """One step as it was built last."""

    model_config = ConfigDict(frozen=True)

    label: str
    kind: str
    key: str
    parameters: dict[str, JsonValue]
    inputs: tuple[str, ...]
    toolchain: dict[str, JsonValue]


class BlueprintMemory(BaseModel):
    """The blueprint that was built last for a recipe name, and where each variant's artefacts lie."""

    model_config = ConfigDict(frozen=True)

    recipe_name: str
    steps: tuple[StepMemory, ...]
    variants: dict[str, tuple[str, ...]]

    def as_steps(self) -> tuple[Step, ...]:
        """The steps as values, sources left out."""
        return tuple(
            Step(StepKind(step.kind), step.label, step.parameters, step.inputs, step.toolchain) for step in self.steps
        )


def read_recipe_text(path: Path) -> YamlText:
    """The YAML of a recipe with its line numbers; Failure names every duplicate key and every alias at once."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise Failure(f"{path} is larger than 1 MiB; a recipe is a short file", "give the recipe, not the model")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Failure(f"there is no recipe {path}", "write one with: draftyard init MODEL_DIRECTORY") from None
    except IsADirectoryError:
        raise Failure(f"{path} is a directory, not a recipe", "give the YAML file of the recipe") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path} cannot be read: {error}", "give a UTF-8 text file") from error
    parsed, problems = parse_yaml(text, path.name)
    raise_problems(problems)
    return parsed


def read_toolchain() -> Toolchain:
    """The pinned tuple that travels with the package; Failure when the installation is broken."""
    places = (PACKAGE_DIRECTORY / "toolchain.yaml", PACKAGE_DIRECTORY.parents[1] / "engines" / "toolchain.yaml")
    for place in places:
        if place.is_file():
            try:
                return Toolchain.model_validate(yaml.safe_load(place.read_text(encoding="utf-8")))
            except (ValidationError, yaml.YAMLError) as error:
                raise Failure(
                    f"toolchain.yaml is broken: {error}", "restore it from git", ExitCode.ENVIRONMENT
                ) from error
    raise Failure("toolchain.yaml is missing from the installation", "install draftyard again", ExitCode.ENVIRONMENT)


def write_new_text(path: Path, text: str) -> None:
    """Write a file that must not exist yet; Failure when it does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Failure(f"{path} exists already", "choose another --output, or remove the file first") from None
    except OSError as error:
        raise Failure(
            f"{path} cannot be written: {error.strerror}", "check the directory", ExitCode.ENVIRONMENT
        ) from error


def remember(folder: Path, blueprint: Blueprint) -> None:
    """Write what was built, beside and renamed, so that a reader never sees half of it."""
    memory = BlueprintMemory(
        recipe_name=blueprint.recipe_name,
        steps=tuple(
            StepMemory.model_validate(
                {
                    "label": step.label,
                    "kind": step.kind.value,
                    "key": step.key,
                    "parameters": step.parameters,
                    "inputs": step.inputs,
                    "toolchain": step.toolchain,
                }
            )
            for step in blueprint.steps
        ),
        variants={variant.name: variant.step_keys for variant in blueprint.variants},
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{blueprint.recipe_name}.{os.getpid()}"
        beside.write_text(json.dumps(memory.model_dump(mode="json"), indent=1, sort_keys=True), encoding="utf-8")
        beside.replace(folder / f"{blueprint.recipe_name}.json")
    except OSError as error:
        raise Failure(
            f"{folder} cannot be written: {error.strerror}", "check the disk", ExitCode.ENVIRONMENT
        ) from error


def recall(folder: Path, recipe_name: str) -> tuple[Step, ...]:
    """The steps that were built last for this recipe name; empty when nothing was, or when the note is unreadable."""
    try:
        data = (folder / f"{recipe_name}.json").read_bytes()
        return BlueprintMemory.model_validate_json(data).as_steps()
    except (OSError, ValidationError, ValueError):
        # Only a memory for the explanation: without it a step is called missing instead of changed.
        return ()
