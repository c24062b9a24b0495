"""Recipes are read strictly; what was built last is remembered, and a broken memory is no memory."""

from pathlib import Path

import pytest

from draftyard.doors.recipe_files import read_recipe_text, read_toolchain, recall, remember, write_new_text
from draftyard.nouns.blueprint import Blueprint, Step, StepKind
from draftyard.nouns.errors import Failure

STEP = Step(StepKind.ENGINE, "engine none", {"config": {"a": 1}}, ("0" * 64,), {"cuda": "13"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nlimits:\n  x: 1\n  x: 2\nname: b\n", r"r.yaml:4: limits.x is given twice, first in line 3"),
        ("name: a\nname: b\n", r"r.yaml:2: name is given twice, first in line 1"),
        ("a: &x 1\nb: *x\n", r"r.yaml:2: alias \*x is refused"),
        ("a: [1\nb: 2\n", r"r.yaml:2: no valid YAML"),
        ("a: !!python/object:os.system {}\n", r"r.yaml:1: no valid YAML"),
    ],
)
def test_what_strict_yaml_refuses(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(Failure, match=message):
        read_recipe_text(path)


def test_lines_of_places(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("a: 1\nb:\n  - c: 2\n    d: 3\n")
    parsed = read_recipe_text(path)
    assert parsed.document == {"a": 1, "b": [{"c": 2, "d": 3}]}
    assert parsed.lines[("b", 0, "d")] == 4


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="there is no recipe"):
        read_recipe_text(tmp_path / "none.yaml")
    with pytest.raises(Failure, match="is a directory"):
        read_recipe_text(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Failure, match="cannot be read"):
        read_recipe_text(tmp_path / "b.yaml")


def test_the_toolchain_travels_with_the_package() -> None:
    assert read_toolchain().tensorrt_llm == "1.2.1"


def test_memory_of_the_last_build(tmp_path: Path) -> None:
    assert recall(tmp_path, "r") == ()
    remember(tmp_path / "x", Blueprint("r", (STEP,), ()))
    (remembered,) = recall(tmp_path / "x", "r")
    assert remembered == STEP
    assert remembered.key == STEP.key
    (tmp_path / "x" / "r.json").write_text("{")
    assert recall(tmp_path / "x", "r") == ()


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    write_new_text(tmp_path / "new" / "r.yaml", "first")
    with pytest.raises(Failure, match="exists already"):
        write_new_text(tmp_path / "new" / "r.yaml", "second")
    assert (tmp_path / "new" / "r.yaml").read_text() == "first"
