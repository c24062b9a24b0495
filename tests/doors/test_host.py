"""What is said of this machine, with a driver's tool that works, fails, or is absent."""

from pathlib import Path

import pytest

from draftyard.doors.host import package_version, read_gpus, read_host
from draftyard.nouns.errors import Failure


def put_tool(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = directory / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


def test_gpus_are_listed_as_the_driver_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, 'echo "$@"; echo "NVIDIA H200, 143771 MiB, 580.1"', monkeypatch)
    asked, gpu = read_gpus()
    assert asked == "--query-gpu=name,memory.total,driver_version --format=csv,noheader"
    assert gpu == "NVIDIA H200, 143771 MiB, 580.1"


def test_a_broken_driver_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, "echo no devices >&2; exit 9", monkeypatch)
    with pytest.raises(Failure, match=r"exit code 9 .* no devices"):
        read_gpus()


def test_no_driver_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpus() == ()


def test_facts_are_plausible_also_for_a_directory_to_come(tmp_path: Path) -> None:
    facts = read_host(tmp_path / "not" / "yet")
    assert facts.processors >= 1
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert facts.disk_free_bytes is not None
    assert facts.disk_free_bytes > 0
    assert package_version("numpy") is not None
    assert package_version("no-such-distribution") is None
