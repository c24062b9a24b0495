"""This machine, as far as building and serving need it: processors, memory, disk, packages, GPUs."""

import os
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from draftyard.doors.shell import run

_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_QUERY_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Counts and bytes; a path that does not exist has None free bytes."""

    processors: int
    memory_bytes: int
    available_bytes: int
    disk_free_bytes: int | None
    shared_memory_free_bytes: int | None


def read_host(directory: Path) -> HostFacts:
    """Facts of this machine and of the file system that `directory` is, or would be, on."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return HostFacts(
        processors=len(os.sched_getaffinity(0)),
        memory_bytes=page_bytes * os.sysconf("SC_PHYS_PAGES"),
        available_bytes=_available_bytes(),
        disk_free_bytes=_free_bytes(_existing(directory)),
        shared_memory_free_bytes=_free_bytes(Path("/dev/shm")),
    )


def package_version(name: str) -> str | None:
    """The installed version of a distribution, None when it is not installed; nothing is imported."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def read_gpus() -> tuple[str, ...]:
    """One line for each NVIDIA GPU: name, memory, driver. Empty without a driver; Failure when its tool fails."""
    if shutil.which(_QUERY[0]) is None:
        return ()
    output = run(_QUERY, timeout_s=_QUERY_TIMEOUT_S).stdout
    return tuple(line.strip() for line in output.splitlines() if line.strip())


def _existing(directory: Path) -> Path:
    path = directory.resolve()
    while not path.exists():
        path = path.parent
    return path


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _available_bytes() -> int:
    """What programs may still take without swapping, as the kernel estimates it."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
