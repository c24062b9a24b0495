"""Judges what a recipe file says: every unknown, missing or wrong key together, with the nearest known one."""

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from pydantic import BaseModel, ValidationError

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem, raise_problems
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.recipe import (
    DraftTargetSpeculator,
    Eagle3Speculator,
    EagleSpeculator,
    LookaheadSpeculator,
    MedusaSpeculator,
    MtpSpeculator,
    NgramSpeculator,
    Recipe,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Place: TypeAlias = "tuple[str | int, ...]"

_SPECULATORS: Mapping[str, type[BaseModel]] = {
    SpeculatorKind.NGRAM.value: NgramSpeculator,
    SpeculatorKind.DRAFT_TARGET.value: DraftTargetSpeculator,
    SpeculatorKind.MEDUSA.value: MedusaSpeculator,
    SpeculatorKind.EAGLE.value: EagleSpeculator,
    SpeculatorKind.EAGLE3.value: Eagle3Speculator,
    SpeculatorKind.MTP.value: MtpSpeculator,
    SpeculatorKind.LOOKAHEAD.value: LookaheadSpeculator,
}


def judge_recipe(document: Json, lines: Mapping[Place, int], file_name: str) -> Recipe:
    """The recipe of a parsed file. Failure lists every problem with its line, its path and what to write."""
    if not isinstance(document, Mapping):
        raise_problems([Problem(f"{file_name} holds no recipe", "start from: draftyard init MODEL_DIRECTORY")])
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A list whose items are wrong is also called too short; the items say it better.
        wrong = {details["loc"][:-1] for details in found}
        kept = [details for details in found if not (details["type"] == "too_short" and details["loc"] in wrong)]
        # A default that follows from other keys cannot be had while one of them is wrong; that one is told.
        kept = [details for details in kept if details["type"] != "default_factory_not_called"]
        problems = [_problem(details, lines, file_name) for details in kept]
    raise_problems(problems)
    raise AssertionError("a validation error has at least one detail")


def _problem(details: "ErrorDetails", lines: Mapping[Place, int], file_name: str) -> Problem:
    place = _place(details["loc"])
    shown = ".".join(str(part) for part in place) or "the recipe"
    where = f"{file_name}:{_line(place, lines)}: {shown}"
    if details["type"] == "extra_forbidden":
        return _unknown(details["loc"], where, shown)
    model = _model_at(details["loc"])
    name = str(details["loc"][-1]) if details["loc"] else ""
    described = model.model_fields[name].description if name in model.model_fields else None
    if details["type"] == "missing":
        return Problem(f"{where} is missing", f"add {shown}" + (f": {described}" if described else ""))
    if details["type"].startswith("union_tag"):
        return Problem(f"{where}: no kind that is known; known kinds: {', '.join(_SPECULATORS)}", f"set {shown}.kind")
    message = details["msg"].removeprefix("Value error, ")
    given = "" if isinstance(details["input"], (Mapping, list)) else f", not {details['input']!r}"
    if details["type"] == "value_error":
        return Problem(f"{where}: {message}", f"correct {shown}")
    return Problem(f"{where}: {message[:1].lower()}{message[1:]}{given}", f"correct {shown}")


def _unknown(location: Place, where: str, shown: str) -> Problem:
    key = str(location[-1])
    known = list(_model_at(location).model_fields)
    near = difflib.get_close_matches(key, known, 1, 0.5)
    prefix = shown.removesuffix(key)
    if near:
        return Problem(f"{where}: unknown key, the nearest known one is {near[0]}", f"write {prefix}{near[0]}")
    return Problem(f"{where}: unknown key; known here: {', '.join(known)}", f"remove {shown}")


def _model_at(location: Place) -> type[BaseModel]:
    """The part of the recipe that the last element of a location is a key of."""
    model: type[BaseModel] = Recipe
    for part in location[:-1]:
        if not isinstance(part, str):
            continue
        if part in _SPECULATORS:
            model = _SPECULATORS[part]
        elif part in model.model_fields:
            inner = model.model_fields[part].annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return model


def _place(location: Place) -> Place:
    """The location without the word that only the parser knows: the kind it chose among the speculators."""
    tagged = len(location) > 2 and location[0] == "speculators" and location[2] in _SPECULATORS
    return (*location[:2], *location[3:]) if tagged else location


def _line(place: Place, lines: Mapping[Place, int]) -> int:
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)
