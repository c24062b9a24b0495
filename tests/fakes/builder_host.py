"""A directory of programs that makes this machine look like one that compiles engines."""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

FAKES = Path(__file__).resolve().parent


def write_programs(directory: Path) -> Path:
    """`trtllm-build`, `nvidia-smi` and the `python3` beside the builder, to be put in front of PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    _script(directory / "trtllm-build", f'exec "{sys.executable}" "{FAKES / "trtllm_build.py"}" "$@"')
    _script(directory / "nvidia-smi", f'exec "{sys.executable}" "{FAKES / "nvidia_smi.py"}" "$@"')
    versions = '{"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48", "torch": "2.9.1", "machine": "x86_64"}'
    _script(directory / "builder-python", f"echo '{versions}'")
    return directory


def host_environment(programs: Path, gpus: tuple[str, ...], faults: str = "") -> Mapping[str, str]:
    """Environment variables of a host with these GPUs, whose builder has these faults."""
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FAKE_GPUS": ";".join(gpus),
        "FAKE_BUILD": faults,
    }


def _script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
