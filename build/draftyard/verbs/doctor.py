"""Says whether this machine can build, serve and verify: what was found, what is missing, what to do about it."""

import platform
import sys
from pathlib import Path

from draftyard.doors.host import HostFacts, package_version, read_gpus, read_host
from draftyard.doors.triton import find_libpython, find_server
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.finding import Check, Finding

_GIB = 1 << 30
_LEAST_MEMORY = 4 * _GIB
_LEAST_DISK = 5 * _GIB
_LEAST_SHARED_MEMORY = _GIB // 4
_NEEDED_PACKAGES = (
    "numpy",
    "pydantic",
    "pyyaml",
    "rich",
    "safetensors",
    "tokenizers",
    "jinja2",
    "protobuf",
    "grpcio",
    "tritonclient",
)


def doctor(out: Path) -> tuple[Check, ...]:
    """All checks; `out` is the directory artefacts would go to. Nothing is written and no model is read."""
    facts = read_host(out)
    return (*embedded_checks(), *_sizes(facts), _gpus())


def embedded_checks() -> tuple[Check, ...]:
    """What the reference lane and its embedded server need of this installation."""
    return (_python(), *_packages(), _torch(), _server(), _libpython())


def measured(out: Path) -> tuple[Check, ...]:
    """Measure this machine's copy rate, products and the reference engine's steps; kept for forecasts below `out`."""
    from draftyard.doors.host_speed_files import write_host_speed
    from draftyard.verbs.measure_host import measure_host

    speed = measure_host()
    path = write_host_speed(speed, out)
    rates = [
        f"{name}: {one.read_bytes_per_s / 1e9:.2f} GB/s of weights, {one.flops / 1e9:.1f} GFLOP/s, "
        f"{one.layer_us:.0f} us a layer, {one.step_us:.0f} us a step, {one.sequence_us:.0f} us a sequence"
        for name, one in speed.reference.items()
    ]
    busy = speed.load_average_1min > speed.processors
    hint = f"load was {speed.load_average_1min:g}; measure again when the machine is idle" if busy else ""
    return (
        Check("copy", Finding.OK, f"{speed.copy_bytes_per_s / 1e9:.1f} GB/s read and written"),
        Check("products", Finding.OK, f"{speed.matrix_flops / 1e9:.1f} GFLOP/s in float32"),
        Check("reference engine", Finding.WARNING if busy else Finding.OK, "; ".join(rates), hint),
        Check("kept in", Finding.OK, str(path)),
    )


def exit_code(checks: tuple[Check, ...]) -> ExitCode:
    """ENVIRONMENT when something needed is missing."""
    return ExitCode.ENVIRONMENT if any(check.finding is Finding.MISSING for check in checks) else ExitCode.DONE


def as_json(checks: tuple[Check, ...]) -> list[Json]:
    """The checks as `--format json` prints them."""
    return [
        {"name": check.name, "finding": check.finding.value, "what": check.what, "hint": check.hint} for check in checks
    ]


def _python() -> Check:
    fits = (3, 10) <= sys.version_info[:2] <= (3, 13)
    what = f"Python {platform.python_version()} ({sys.executable})"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        return Check("python", Finding.MISSING, f"{what} on {platform.platform()}", "use Linux on x86-64 or aarch64")
    return Check("python", Finding.OK if fits else Finding.MISSING, what, "" if fits else "use Python 3.10 to 3.13")


def _packages() -> tuple[Check, ...]:
    checks = []
    for name in _NEEDED_PACKAGES:
        version = package_version(name)
        if version is None:
            checks.append(Check(name, Finding.MISSING, "not installed", f"pip install {name}"))
        else:
            checks.append(Check(name, Finding.OK, version))
    return tuple(checks)


def _torch() -> Check:
    version = package_version("torch")
    if version is None:
        return Check("torch", Finding.MISSING, "not installed; the reference lane needs it", "pip install torch")
    return Check("torch", Finding.OK, f"{version} ({'CPU build' if '+cpu' in version else 'build with GPU support'})")


def _server() -> Check:
    try:
        return Check("tritonserver", Finding.OK, str(find_server()))
    except Failure as failure:
        return Check("tritonserver", Finding.MISSING, failure.message, failure.hint)


def _libpython() -> Check:
    try:
        return Check("libpython", Finding.OK, str(find_libpython()))
    except Failure as failure:
        return Check("libpython", Finding.MISSING, failure.message, failure.hint)


def _sizes(facts: HostFacts) -> tuple[Check, ...]:
    processors = Check("processors", Finding.OK, str(facts.processors))
    if facts.processors < 2:
        hint = "server and load share one processor, so measured speeds are low; use two or more"
        processors = Check("processors", Finding.WARNING, str(facts.processors), hint)
    memory = f"{_gib(facts.available_bytes)} available of {_gib(facts.memory_bytes)}"
    return (
        processors,
        _size("memory", facts.available_bytes, _LEAST_MEMORY, memory, "end other programs"),
        _size("disk", facts.disk_free_bytes, _LEAST_DISK, f"{_gib(facts.disk_free_bytes)} free", "free disk space"),
        _size(
            "/dev/shm",
            facts.shared_memory_free_bytes,
            _LEAST_SHARED_MEMORY,
            f"{_gib(facts.shared_memory_free_bytes)} free",
            "give the container more shared memory, such as --shm-size 1g",
        ),
    )


def _size(name: str, found_bytes: int | None, least_bytes: int, what: str, advice: str) -> Check:
    if found_bytes is not None and found_bytes >= least_bytes:
        return Check(name, Finding.OK, what)
    return Check(name, Finding.WARNING, what, f"{advice}; the demo wants {_gib(least_bytes)}")


def _gpus() -> Check:
    try:
        gpus = read_gpus()
    except Failure as failure:
        return Check("gpu", Finding.WARNING, failure.message, failure.hint)
    return Check("gpu", Finding.OK, "; ".join(gpus) or "none; the reference lane runs on the processor")


def _gib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / _GIB:.1f} GiB"
