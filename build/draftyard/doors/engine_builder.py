"""Runs an engine builder: follows its log, its memory and its time, and tells what it left."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.shell import RunningProgram, run, session_members, start
from draftyard.nouns.digest import Json
from draftyard.nouns.engine_build import BuildRemains
from draftyard.nouns.errors import ExitCode, Failure

_POLL_S = 0.2
_STOP_S = 10.0
_PROBE_S = 120.0
_LOG_BYTES = 4 << 20
# Reads installed versions without importing anything: an import would need the GPU's libraries.
_PROBE = """
import importlib.metadata as m, json, platform
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
names = ("tensorrt_llm", "tensorrt", "torch", "nvidia-modelopt")
print(json.dumps({**{n: version(n) for n in names}, "os": platform.platform(), "machine": platform.machine()}))
"""


@dataclass(frozen=True, slots=True)
class BuildBounds:
    """When a build is ended by us: seconds, and bytes of resident memory over all its processes (None: no bound)."""

    timeout_s: float
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BuilderProbe:
    """What the builder is: the options that its help names, and the versions installed beside it."""

    options: tuple[str, ...]
    versions: Mapping[str, Json]


def probe_builder(help_argv: Sequence[str], python_argv: Sequence[str]) -> BuilderProbe:
    """Ask for the help once, and for the versions; Failure when the builder cannot even say this.

    `help_argv` is the builder's command up to its options, `python_argv` that of the Python beside it.
    """
    words = run([*help_argv, "--help"], timeout_s=_PROBE_S).stdout.replace(",", " ").replace("[", " ").split()
    options = tuple(sorted({word[2:].partition("=")[0].rstrip("]") for word in words if word.startswith("--")}))
    output = run([*python_argv, "-c", _PROBE], timeout_s=_PROBE_S).stdout
    try:
        versions = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise Failure(
            f"the Python beside the builder does not tell its versions: {output[-200:]!r}",
            "give the Python of the TensorRT-LLM installation with --builder-python",
            ExitCode.ENVIRONMENT,
        ) from error
    return BuilderProbe(options, versions)


def run_builder(
    argv: Sequence[str],
    *,
    output: Path,
    log_path: Path,
    bounds: BuildBounds,
    tell: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> BuildRemains:
    """Run a builder to its end, or end it; returns what it left in `output`.

    `tell` gets each line of the log and may raise to give up: the builder and all it started are then ended before
    the exception goes on. Never raises for a builder that fails: judging is for the caller.
    """
    program = start(argv, cwd=output, environment=environment, log_path=log_path)
    until = time.monotonic() + bounds.timeout_s
    timed_out = starved = False
    lines = _Lines(log_path)
    try:
        while program.wait(_POLL_S) is None:
            lines.pass_on(tell)
            timed_out = time.monotonic() > until
            starved = bounds.memory_bytes is not None and _resident_bytes(program) > bounds.memory_bytes
            if timed_out or starved:
                break
        lines.pass_on(tell)
    finally:
        exit_code = program.stop(_STOP_S)
    return BuildRemains(
        exit_code=exit_code,
        log=_tail(log_path),
        files={path.name: path.stat().st_size for path in sorted(output.iterdir()) if path.is_file()},
        config=_config(output / "config.json"),
        timed_out=timed_out,
        out_of_host_memory=starved,
    )


class _Lines:
    """The whole lines that a growing file has gained since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def pass_on(self, tell: Callable[[str], None]) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            gained = file.read()
        self._offset += len(gained)
        *whole, self._rest = (self._rest + gained).split(b"\n")
        for line in whole:
            tell(line.decode("utf-8", "replace"))


def _resident_bytes(program: RunningProgram) -> int:
    page_bytes, total = os.sysconf("SC_PAGE_SIZE"), 0
    for pid in (program.pid, *session_members(program.pid)):
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * page_bytes
        except (OSError, IndexError, ValueError):
            continue  # it has just ended
    return total


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return file.read().decode("utf-8", "replace")


def _config(path: Path) -> Mapping[str, Json] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
