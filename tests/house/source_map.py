"""Reads the project's own source: which modules there are, what each imports, which functions each defines."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOT = ROOT / "build"
PACKAGE = SOURCE_ROOT / "draftyard"
GUESTS = ROOT / "triton_repo" / "models"
BACKENDS = ROOT / "triton_repo" / "backends"

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


@dataclass(frozen=True)
class Import:
    """One imported module, as an absolute dotted name, and where it says so; `level` is above 0 when relative."""

    module: str
    where: str
    level: int = 0

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def package_files() -> tuple[Path, ...]:
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def server_files() -> tuple[Path, ...]:
    """Guests and backends; a file that is a link to another is seen once, as the other."""
    found = [path for folder in (GUESTS, BACKENDS) for path in folder.rglob("*.py")]
    return tuple(sorted(path for path in found if not path.is_symlink()))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in package_files()}


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import of a file: also those inside functions, and those for type checkers alone."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(parsed(path)):
        where = f"{shown(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (Import(name.name, where) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            yield from (Import(imported_module(start, name.name), where, node.level) for name in node.names)
        elif isinstance(node, ast.Call) and called_name(node) in ("__import__", "import_module"):
            first = node.args[0] if node.args else None
            named = isinstance(first, ast.Constant) and isinstance(first.value, str)
            yield Import(str(first.value) if isinstance(first, ast.Constant) and named else "(computed)", where)


def imported_module(start: str, name: str) -> str:
    """`from a import b` means the module a.b when there is one, else a."""
    joined = f"{start}.{name}"
    return joined if joined in modules() else start


def called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def length(function: Function) -> int:
    """Lines from `def` to the end."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


@cache
def project_files() -> tuple[Path, ...]:
    """What git tracks or would track; in an unpacked archive without git, everything but hidden and generated files."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists():
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=30)
        if done.returncode == 0:
            paths = [ROOT / name for name in done.stdout.decode().split("\0") if name]
            return tuple(sorted(path for path in paths if path.is_file()))
    return tuple(sorted(path for path in ROOT.rglob("*") if path.is_file() and not _generated(path)))


def _generated(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    hidden = any(part.startswith(".") and part != ".ci" for part in parts[:-1])
    return hidden or "__pycache__" in parts or "out" in parts or path.suffix == ".pyc"
