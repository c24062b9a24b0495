"""Expands the hand-written prompt sources (YAML) into the prompt pack (JSON lines), the same bytes on every run."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

SPLITS = ("train", "test")
PACK = Path(__file__).parent / "prompts"


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a domain: every template meets every row and every combination of the slots it names."""

    domain: str
    length: str
    max_tokens: int
    templates: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]
    slots: Mapping[str, tuple[str, ...]]
    take: int | None


def read_groups(path: Path) -> list[Group]:
    """Read one split's source file; unknown keys raise TypeError, so that a typing error is never ignored."""
    groups: list[Group] = []
    for domain, entries in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        for entry in entries:
            known = {"length", "max_tokens", "templates", "rows", "slots", "take"}
            if unknown := set(entry) - known:
                raise TypeError(f"{path.name}: {domain} has unknown keys {sorted(unknown)}")
            rows = tuple({key: str(value) for key, value in row.items()} for row in entry.get("rows", [{}]))
            slots = {name: slot_values(values) for name, values in entry.get("slots", {}).items()}
            groups.append(
                Group(
                    domain=domain,
                    length=entry["length"],
                    max_tokens=entry["max_tokens"],
                    templates=tuple(entry["templates"]),
                    rows=rows,
                    slots=slots,
                    take=entry.get("take"),
                )
            )
    return groups


def slot_values(values: str | Sequence[object]) -> tuple[str, ...]:
    """A slot is a list of values, or `low..high`: every whole number from low to high."""
    if isinstance(values, str):
        low, high = values.split("..")
        return tuple(str(number) for number in range(int(low), int(high) + 1))
    return tuple(str(value) for value in values)


def expand(group: Group) -> list[str]:
    """All prompts of a group, or `take` of them drawn with a seed that depends on the group's text alone."""
    seed = hashlib.sha256("\n".join(group.templates).encode()).hexdigest()
    draw = random.Random(seed)
    if group.take is None:
        prompts = list(_all_prompts(group))
        return list(dict.fromkeys(prompts))
    drawn: dict[str, None] = {}
    decks = {name: _shuffled(values, draw) for name, values in group.slots.items()}
    for turn in range(group.take * 20):
        template = group.templates[turn % len(group.templates)]
        row = group.rows[(turn // len(group.templates)) % len(group.rows)]
        chosen = {name: next(decks[name]) for name in _fields(template) if name in decks}
        drawn[template.format(**row, **chosen)] = None
        if len(drawn) == group.take:
            break
    return list(drawn)


def _all_prompts(group: Group) -> Iterator[str]:
    for template, row in itertools.product(group.templates, group.rows):
        names = [name for name in _fields(template) if name in group.slots]
        for values in itertools.product(*(group.slots[name] for name in names)):
            yield template.format(**row, **dict(zip(names, values, strict=True)))


def _fields(template: str) -> list[str]:
    return list(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(template) if name))


def _shuffled(values: tuple[str, ...], draw: random.Random) -> Iterator[str]:
    while True:
        yield from draw.sample(values, len(values))


def pack_lines(split: str) -> list[str]:
    """The JSON lines of one split, in the order of the source."""
    lines = []
    counts: dict[str, int] = {}
    for group in read_groups(PACK / "source" / f"{split}.yaml"):
        for prompt in expand(group):
            number = counts.get(group.domain, 0)
            counts[group.domain] = number + 1
            record = {
                "id": f"{group.domain}-{split}-{number:03d}",
                "domain": group.domain,
                "split": split,
                "length": group.length,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": group.max_tokens,
            }
            lines.append(json.dumps(record, ensure_ascii=False))
    return lines


def main() -> None:
    """Write prompts/train.jsonl and prompts/test.jsonl; with --check compare them instead."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when a file differs from its source")
    check = parser.parse_args().check
    for split in SPLITS:
        path = PACK / f"{split}.jsonl"
        text = "\n".join(pack_lines(split)) + "\n"
        if check and path.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{path.name} differs from its source: run engines/demo/write_prompts.py")
        if not check:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
