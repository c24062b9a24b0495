"""Arrows point down: who may import whom, what is kept pure, and which door holds which library."""

import ast
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.house.source_map import (
    BACKENDS,
    GUESTS,
    PACKAGE,
    ROOT,
    SOURCE_ROOT,
    Import,
    called_name,
    imports,
    module_name,
    modules,
    package_files,
    parsed,
    server_files,
    shown,
)

ALLOWED: dict[str, set[str]] = {
    "cli": {"cli", "verbs", "nouns"},
    "verbs": {"verbs", "rules", "doors", "engine", "nouns"},
    "rules": {"rules", "nouns"},
    "doors": {"doors", "nouns"},
    "engine": {"engine", "nouns"},
    "nouns": {"nouns"},
}
# What the pure floors may use: values, text, numbers. No clock, no files, no processes, no network, no chance.
PURE = {
    *("collections", "dataclasses", "difflib", "enum", "fractions", "functools", "hashlib", "itertools", "json"),
    *("math", "operator", "re", "statistics", "string", "typing", "xml"),
    *("numpy", "pydantic", "pydantic_core"),
}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "compile", "breakpoint", "read_text", "write_text"}
GUEST_LIBRARIES = {"numpy", "tokenizers", "jinja2", "triton_python_backend_utils"}
NAMES_WITHOUT_MEANING = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc", "tools"}


def floor_of(module: str) -> str:
    """The floor of a module; "" is the package itself, which holds the version and imports nothing."""
    parts = module.split(".")
    if len(parts) == 1:
        return ""
    return "cli" if parts[1] == "__main__" or parts[1].split("_")[0] == "cli" else parts[1]


def own_imports(path: Path) -> list[Import]:
    return [one for one in imports(path) if one.top == "draftyard"]


def importers(library: str, files: Iterable[Path]) -> set[str]:
    return {path.relative_to(PACKAGE).as_posix() for path in files for one in imports(path) if one.top == library}


def test_every_module_has_a_floor() -> None:
    floors = {floor_of(module) for module in modules()}
    assert floors - {""} == set(ALLOWED)
    assert imports(PACKAGE / "__init__.py") == ()


def test_arrows_point_down() -> None:
    wrong = [
        f"{one.where}: {floor} imports {one.module}"
        for path in package_files()
        if (floor := floor_of(module_name(path)))
        for one in own_imports(path)
        if floor_of(one.module) not in {*ALLOWED[floor], ""}
    ]
    assert wrong == []


def test_imports_are_absolute_and_written_out() -> None:
    found = [one for path in (*package_files(), *server_files()) for one in imports(path)]
    assert len(found) > 500
    assert [one.where for one in found if one.level or one.module == "(computed)"] == []


def test_own_modules_that_are_imported_exist() -> None:
    wrong = [one for path in package_files() for one in own_imports(path) if one.module not in modules()]
    assert [f"{one.where}: {one.module}" for one in wrong] == []


@pytest.mark.parametrize("floor", ["nouns", "rules"])
def test_pure_floors_touch_nothing(floor: str) -> None:
    wrong = []
    for path in sorted((PACKAGE / floor).rglob("*.py")):
        wrong += [f"{one.where}: {one.module}" for one in imports(path) if one.top not in {*PURE, "draftyard"}]
        calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
        bad = [node for node in calls if called_name(node) in IMPURE_CALLS and not is_pattern(node)]
        wrong += [f"{shown(path)}:{node.lineno}: calls {called_name(node)}" for node in bad]
    assert wrong == []


def is_pattern(node: ast.Call) -> bool:
    """`re.compile` is no I/O."""
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id == "re"


def test_torch_stays_in_the_engine() -> None:
    users = importers("torch", package_files())
    assert users
    assert {name for name in users if not name.startswith("engine/")} == set()
    assert [one.where for path in server_files() for one in imports(path) if one.top == "torch"] == []


def test_one_door_for_each_library_that_touches_the_world() -> None:
    assert importers("subprocess", package_files()) == {"doors/shell.py"}
    assert importers("safetensors", package_files()) <= {"doors/tensors.py"}
    assert importers("tritonclient", package_files()) == {"doors/endpoint.py", "doors/model_config.py"}
    assert importers("starlette", package_files()) == importers("uvicorn", package_files()) == {"doors/http_front.py"}
    sockets = {name for library in ("socket", "asyncio") for name in importers(library, package_files())}
    assert {name for name in sockets if not name.startswith(("doors/", "verbs/"))} == set()


def test_guests_stand_alone() -> None:
    """They run in the server's own Python: the standard library, four libraries, and files of their own folder."""
    wrong = []
    for path in server_files():
        if path.is_relative_to(GUESTS):
            known = {*sys.stdlib_module_names, *GUEST_LIBRARIES, *stems(path.parent), *stems(GUESTS / "shared")}
            wrong += [f"{one.where}: {one.module}" for one in imports(path) if one.top not in known]
    assert wrong == []


def test_backends_use_the_engine_and_their_own_files() -> None:
    wrong = []
    for path in server_files():
        if path.is_relative_to(BACKENDS):
            known = {*sys.stdlib_module_names, *GUEST_LIBRARIES, *stems(path.parent)}
            for one in imports(path):
                allowed = floor_of(one.module) in {"engine", "doors", "nouns"}
                if one.top not in known and not (one.top == "draftyard" and allowed):
                    wrong.append(f"{one.where}: {one.module}")
    assert wrong == []


def stems(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")}


def test_no_import_cycle() -> None:
    graph = {
        name: {one.module for one in own_imports(path) if one.module in modules()} - {name}
        for name, path in modules().items()
    }
    assert cycles(graph) == []


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other; what is left when nodes without a way on are taken away repeatedly."""
    left = {name: set(targets) for name, targets in graph.items()}
    while True:
        ends = {name for name, targets in left.items() if not targets & left.keys()}
        starts = left.keys() - {target for targets in left.values() for target in targets}
        if not ends | starts:
            return [sorted(left)] if left else []
        left = {name: targets for name, targets in left.items() if name not in ends | starts}


def test_a_cycle_would_be_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []


def test_module_names_are_unique_and_mean_something() -> None:
    counts = Counter(path.stem for path in package_files() if not path.stem.startswith("__"))
    assert [name for name, count in counts.items() if count > 1] == []
    every = {path.stem for path in (*package_files(), *server_files())}
    assert [name for name in every if NAMES_WITHOUT_MEANING & set(name.split("_"))] == []


def test_build_is_a_source_root_that_nothing_ignores() -> None:
    assert not (SOURCE_ROOT / "__init__.py").exists()
    ignore_files = [path for pattern in (".*ignore", "*/.*ignore") for path in ROOT.glob(pattern) if path.is_file()]
    assert ROOT / ".gitignore" in ignore_files
    for path in ignore_files:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        rules = [line for line in lines if line and not line.startswith("#")]
        assert [line for line in rules if "build" in line.strip("!/*").split("/")] == [], shown(path)
