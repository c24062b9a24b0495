"""Parses YAML strictly: duplicate keys and aliases are refused, and every place keeps its line."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import yaml

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem

Place: TypeAlias = "tuple[str | int, ...]"


@dataclass(frozen=True, slots=True)
class YamlText:
    """A document and the line (from 1) at which each place of it begins."""

    document: Json
    lines: Mapping[Place, int]


def parse_yaml(text: str, name: str) -> tuple[YamlText, list[Problem]]:
    """The document, and what is wrong with it; with problems the document is empty. `name` is for messages."""
    try:
        aliases = [event for event in yaml.parse(text, yaml.SafeLoader) if isinstance(event, yaml.AliasEvent)]
        if aliases:
            line = aliases[0].start_mark.line + 1 if aliases[0].start_mark else 1
            return _empty(), [Problem(f"{name}:{line}: alias *{aliases[0].anchor} is refused", "write the value out")]
        root = yaml.compose(text, yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return _empty(), [Problem(f"{name}:{line}: no valid YAML: {error.problem}", "correct this line")]
    except (yaml.YAMLError, ValueError) as error:
        return _empty(), [Problem(f"{name}: no valid YAML: {error}", "correct the file")]
    lines: dict[Place, int] = {}
    problems: list[Problem] = []
    if root is not None:
        _walk(root, (), name, lines, problems)
    return YamlText(document, lines), problems


def _empty() -> YamlText:
    return YamlText(None, {})


def _walk(node: yaml.Node, place: Place, name: str, lines: dict[Place, int], problems: list[Problem]) -> None:
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*place, index), name, lines, problems)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, str(key.value))
            line = key.start_mark.line + 1
            if inner in lines:
                shown = ".".join(str(part) for part in inner)
                problems.append(
                    Problem(f"{name}:{line}: {shown} is given twice, first in line {lines[inner]}", "keep one of them")
                )
            lines[inner] = line
            _walk(value, inner, name, lines, problems)


def write_yaml(path: Path, document: Mapping[str, Json]) -> None:
    """Write a mapping, keys sorted, so that equal values give equal bytes."""
    path.write_text(yaml.safe_dump(dict(document), sort_keys=True, allow_unicode=True), encoding="utf-8")
