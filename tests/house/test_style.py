"""The linters, as they are set in pyproject.toml, run once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.house.source_map import ROOT

SHARED = "triton_repo/models/shared"
GUESTS = ("preprocessing/1", "postprocessing/1", "tensorrt_llm_bls/1")


def run(*words: str, search: str = "", timeout_s: float = 170) -> None:
    """Run a tool of this interpreter; what it found is the message of the failure."""
    environment = {**os.environ, "MYPYPATH": search, "NO_COLOR": "1"}
    argv = [sys.executable, "-m", *words]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing() -> None:
    run("ruff", "check", "--quiet", ".")


def test_everything_is_formatted() -> None:
    run("ruff", "format", "--check", "--quiet", ".")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_types_hold() -> None:
    run("mypy", timeout_s=380)


@pytest.mark.slow
@pytest.mark.parametrize("guest", GUESTS)
def test_types_of_guests_hold(guest: str) -> None:
    """One call each: every guest has a model.py of its own."""
    folder = f"triton_repo/models/{guest}"
    run("mypy", "--config-file", "pyproject.toml", folder, search=os.pathsep.join((SHARED, folder)))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_types_of_backends_hold() -> None:
    folder = "triton_repo/backends/tensorrtllm"
    run("mypy", "--config-file", "pyproject.toml", folder, search=folder, timeout_s=380)


def test_the_linters_look_at_every_folder_with_python() -> None:
    """A new folder with code must be named in the settings, or nothing checks it."""
    argv = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    seen = {Path(line).relative_to(ROOT).parts[0] for line in done.stdout.splitlines() if line.endswith(".py")}
    assert seen >= {"build", "tests", "triton_repo", "engines", "benchmarks"}
