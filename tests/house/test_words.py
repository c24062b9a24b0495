"""The project speaks of itself alone, and its tests use nothing from outside the checkout."""

import ast
import re
from pathlib import Path

import pytest
from tests.house.source_map import ROOT, parsed, project_files, shown

# Written in pieces, so that this file does not hold what it looks for.
FOREIGN = {
    "a numbered ticket": r"\bissue" + r"s? #\d",
    "a page of another project": r"\bDEVELOPERS" + r"\.md\b|\baesthetics" + r"\.md\b",
    "a folder beside the checkout": r"\.\./" + r"shared/|/work" + r"/(main|shared)\b",
    "a scratch folder": r"/tmp" + r"/w\b|/home" + r"/\w+/|/Users" + r"/\w+/",
    "a package registry": "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("registry", "npmjs", "org"),
            ("registry", "yarnpkg", "com"),
            ("static", "crates", "io"),
            ("proxy", "golang", "org"),
            ("conda", "anaconda", "org"),
        )
    )
    + r"|--(extra-)?index"
    + r"-url\b|\bartifact"
    + "ory\\b",
    "talk of how it was made": r"(?i)\b(this|previous|next|earlier|another) ses"
    + r"sion\b|\b(ai|coding) age"
    + r"nts?\b|\bsub-?age"
    + r"nts?\b|\bco-authored"
    + "-by\\b",
}
TEXT_LIMIT_BYTES = 2_000_000


def texts() -> list[tuple[str, str]]:
    found = []
    for path in project_files():
        data = path.read_bytes() if path.stat().st_size <= TEXT_LIMIT_BYTES else b"\0"
        if b"\0" not in data:
            found.append((shown(path), data.decode("utf-8")))
    return found


@pytest.mark.parametrize("what", FOREIGN)
def test_no_word_of_elsewhere(what: str) -> None:
    pattern = re.compile(FOREIGN[what])
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], what


@pytest.mark.parametrize("what", FOREIGN)
def test_the_patterns_find_what_they_name(what: str) -> None:
    examples = {
        "a numbered ticket": "see issue" + " #12",
        "a page of another project": "DEVELOPERS" + ".md",
        "a folder beside the checkout": "../" + "shared/x",
        "a scratch folder": "/tmp" + "/w/x",
        "a package registry": "https://" + "pypi" + ".org/simple",
        "talk of how it was made": "in the previous ses" + "sion",
    }
    assert re.search(FOREIGN[what], examples[what])


def test_every_text_is_utf8_with_unix_lines() -> None:
    assert [name for name, text in texts() if "\r" in text or (text and not text.endswith("\n"))] == []


def test_tests_stay_inside_the_checkout() -> None:
    """Paths are built from the test's own place, never beyond the root; absolute ones name no folder of the machine."""
    wrong = []
    for path in project_files():
        if path.suffix == ".py" and path.is_relative_to(ROOT / "tests"):
            wrong += [f"{shown(path)}:{line}" for line in climbs_too_far(path)]
    assert wrong == []


def climbs_too_far(path: Path) -> list[int]:
    """Lines with `parents[n]` where n reaches above the root of the checkout."""
    depth = len(path.relative_to(ROOT).parts) - 1
    lines = []
    for node in ast.walk(parsed(path)):
        indexed = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute)
        if indexed and node.value.attr == "parents" and isinstance(node.slice, ast.Constant):
            above = node.slice.value
            if isinstance(above, int) and above > depth and "__file__" in ast.unparse(node.value):
                lines.append(node.lineno)
    return lines
