"""Writes docs/recipe.md from the recipe's own schema: PYTHONPATH=build python -m tests.house.recipe_reference."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from tests.house.source_map import ROOT

from draftyard.nouns.recipe import Recipe

PAGE = ROOT / "docs" / "recipe.md"
OPENING = """# Recipe reference

<!-- Generated from the schema of recipes. To rewrite it: PYTHONPATH=build python -m tests.house.recipe_reference -->

A recipe is one YAML file: what is built, served and verified. It is whole in itself, with no inheritance, and a
relative path starts at the folder of the recipe. A key that is not listed here is an error, and the message names the
nearest known key. `draftyard init MODEL_DIR` writes a commented recipe for a model, `draftyard plan RECIPE` checks one
and explains what it would build, and `draftyard schema` prints the JSON schema for editors. A whole recipe to read is
that of the demo: [engines/recipes/demo.yaml](../engines/recipes/demo.yaml).

Not every combination that can be written is built: `draftyard plan` refuses the others before any weight is read and
names the nearest one that is.
"""
TABLE_HEAD = "| key | type | default | meaning |\n|---|---|---|---|"
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}

Schema = Mapping[str, object]


def recipe_reference() -> str:
    """The whole page."""
    schema = Recipe.model_json_schema()
    sections = schema["$defs"]
    parts = [OPENING, *_section("The file", "", schema, sections)]
    for path, name in _places(schema, sections):
        parts += _section(f"`{path}`", path, sections[name], sections)
    return "\n".join(parts).rstrip() + "\n"


def _places(schema: Schema, sections: Mapping[str, Schema], above: str = "") -> Iterator[tuple[str, str]]:
    """Where each nested object stands, in the order of the file: ("verify.gates", "Gates")."""
    for key, field in _fields(schema).items():
        path = f"{above}.{key}" if above else key
        for name in _objects(field, sections):
            kind = _fields(sections[name]).get("kind")
            yield (path if kind is None else f"{path}[kind: {kind['const']}]"), name
            yield from _places(sections[name], sections, path)


def _fields(schema: Schema) -> Mapping[str, Schema]:
    return cast("Mapping[str, Schema]", schema["properties"])


def _objects(field: Schema, sections: Mapping[str, Schema]) -> list[str]:
    """Names of the sections that a field's value may be."""
    items = cast("Schema", field.get("items", {}))
    choices = cast("Sequence[Schema]", items.get("oneOf", (field, items, *field.get("anyOf", ()))))
    names = [str(choice["$ref"]).rpartition("/")[2] for choice in choices if "$ref" in choice]
    return [name for name in names if "properties" in sections[name]]


def _section(title: str, path: str, schema: Schema, sections: Mapping[str, Schema]) -> list[str]:
    required = cast("Sequence[str]", schema.get("required", ()))
    rows = [f"## {title}\n", f"{schema['description']}\n", TABLE_HEAD]
    for key, field in _fields(schema).items():
        default = "required" if key in required else _value(field.get("default"))
        meaning = _meaning(key, path, field, sections)
        rows.append(f"| `{key}` | {_kind(field, sections)} | {default} | {meaning} |")
    return [*rows, ""]


def _meaning(key: str, path: str, field: Schema, sections: Mapping[str, Schema]) -> str:
    nested = _objects(field, sections)
    if "description" in field:
        return str(field["description"]) + (" See below." if nested else "")
    if nested:
        return f"{sections[nested[0]]['description']} See below."
    if key == "kind":
        return "Which way to speculate."
    raise ValueError(f"{path}.{key} has no description in the schema")


def _kind(field: Schema, sections: Mapping[str, Schema]) -> str:
    """The type of a value in a few words, with its bounds."""
    if "anyOf" in field:
        return " or ".join(_kind(one, sections) for one in cast("Sequence[Schema]", field["anyOf"]))
    if "const" in field:
        return _value(field["const"])
    if "$ref" in field:
        named = sections[str(field["$ref"]).rpartition("/")[2]]
        return "section" if "properties" in named else ", ".join(_value(one) for one in _choices(named))
    if field.get("type") == "array":
        items = cast("Schema", field["items"])
        return "list of sections" if "oneOf" in items else f"list of: {_kind(items, sections)}"
    bounds = [f"{sign} {field[key]:g}" for key, sign in BOUNDS.items() if key in field]
    pattern = [f"matches `{field['pattern']}`"] if "pattern" in field else []
    words = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true or false",
        "null": "unset",
        "object": "names and texts",
    }
    return " ".join([words[str(field["type"])], *bounds, *pattern])


def _choices(named: Schema) -> Sequence[object]:
    return cast("Sequence[object]", named.get("enum", (named.get("const"),)))


def _value(value: object) -> str:
    """A default or a choice, as YAML writes it."""
    if value is None:
        return "unset"
    if isinstance(value, dict):
        return "its own defaults"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(recipe_reference(), encoding="utf-8")
