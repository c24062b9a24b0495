"""Writes a recipe as YAML with a comment for every key, taken from the descriptions of the recipe's own fields."""

import json
import re
from collections.abc import Iterator
from enum import Enum

from pydantic import BaseModel

from draftyard.nouns.recipe import Recipe

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./ -]*[A-Za-z0-9_/]|[A-Za-z]")
_WORDS_WITH_A_MEANING = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
_INDENT = "  "


def recipe_text(recipe: Recipe, opening: str) -> str:
    """The recipe as YAML that parses back to the same value; `opening` becomes the first comment."""
    head = [f"# {line}" for line in opening.splitlines()]
    return "\n".join([*head, "", *_section(recipe, "")]) + "\n"


def _section(section: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        comment = f"  # {field.description}" if field.description else ""
        if value is None:
            yield f"{indent}# {name}: unset{comment}"
        elif isinstance(value, BaseModel):
            yield f"{indent}{name}:  # {(type(value).__doc__ or '').splitlines()[0]}"
            yield from _section(value, indent + _INDENT)
        elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
            yield f"{indent}{name}:{comment}"
            for item in value:
                yield from _list_item(item, indent + _INDENT)
        else:
            yield f"{indent}{name}: {_scalar(value)}{comment}"


def _list_item(item: BaseModel, indent: str) -> Iterator[str]:
    lines = list(_section(item, indent + _INDENT))
    yield f"{indent}- {lines[0].lstrip()}"
    yield from lines[1:]


def _scalar(value: object) -> str:
    if isinstance(value, Enum):
        return _scalar(value.value)
    if isinstance(value, tuple):
        return f"[{', '.join(_scalar(item) for item in value)}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS_WITH_A_MEANING:
        return value
    return json.dumps(value, ensure_ascii=False)
