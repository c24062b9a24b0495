"""Short functions, short files, whole signatures."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.source_map import Function, functions, length, package_files, server_files, shown

LONGEST_FUNCTION = 60
NINETIETH_PERCENTILE = 25
LONGEST_FILE = 400


def files() -> tuple[Path, ...]:
    return (*package_files(), *server_files())


def named() -> Iterator[tuple[str, Function]]:
    for path in files():
        for function in functions(path):
            yield f"{shown(path)}:{function.lineno} {function.name}", function


def test_functions_are_short() -> None:
    lengths = {name: length(function) for name, function in named()}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FUNCTION} == {}
    ordered = sorted(lengths.values())
    assert len(ordered) > 500
    assert ordered[int(len(ordered) * 0.9)] <= NINETIETH_PERCENTILE


def test_files_are_short() -> None:
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files()}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_every_function_is_annotated() -> None:
    assert [name for name, function in named() if missing_annotations(function)] == []


def missing_annotations(function: Function) -> list[str]:
    arguments = parameters(function)
    own = arguments[:1] and arguments[0].arg in ("self", "cls")
    found = [one.arg for one in arguments[1 if own else 0 :] if one.annotation is None]
    return [*found, "return"] if function.returns is None else found


def parameters(function: Function) -> list[ast.arg]:
    given = function.args
    variable = [one for one in (given.vararg, given.kwarg) if one is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *variable]


def test_signatures_say_what_they_take() -> None:
    """No `Any`, and no bag of keywords but where each key becomes an attribute of a markup element."""
    annotated = {
        name: [one.annotation for one in parameters(function)] + [function.returns] for name, function in named()
    }
    anything = [name for name, parts in annotated.items() if any(part and mentions(part, "Any") for part in parts)]
    assert anything == []
    bags = [name for name, function in named() if function.args.kwarg and function.name != "element"]
    assert bags == []


def mentions(annotation: ast.expr, word: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == word for node in ast.walk(annotation))


def test_own_types_are_not_probed() -> None:
    probes = [
        f"{shown(path)}:{node.lineno}"
        for path in files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr"
    ]
    assert probes == []


def test_every_module_says_what_it_is_for() -> None:
    silent = []
    for path in files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not ast.get_docstring(tree):
            silent.append(shown(path))
    assert silent == []
