"""The machine that measures: what a report says about it."""

import os
import platform
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from draftyard.nouns.report import Environment

PACKAGES = ("grpcio", "numpy", "nvidia-pytriton", "tokenizers", "torch", "tritonclient")


def read_environment() -> Environment:
    """Processor, memory, versions and load of this machine; packages that are absent are left out."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return Environment(
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        processor_count=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=sys.version.split()[0],
        packages=versions,
        load_average_1min=round(os.getloadavg()[0], 2),
    )


def now_utc() -> str:
    """The time in ISO 8601, UTC, whole seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
