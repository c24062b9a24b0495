"""The NVIDIA GPUs of this machine, one by one, by the identity that does not change."""

import shutil
from dataclasses import dataclass

from draftyard.doors.shell import run
from draftyard.nouns.errors import ExitCode, Failure

_FIELDS = ("name", "uuid", "memory.total", "driver_version", "compute_cap", "mig.mode.current")
_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU as the driver names it; `mig` tells whether it is cut into instances."""

    name: str
    uuid: str
    memory_bytes: int
    driver: str
    compute_capability: str
    mig: bool


def read_gpu_devices() -> tuple[GpuDevice, ...]:
    """All GPUs; empty without a driver. Failure when the driver's tool fails or prints something else."""
    if shutil.which("nvidia-smi") is None:
        return ()
    argv = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    lines = run(argv, timeout_s=_TIMEOUT_S).stdout.splitlines()
    return tuple(parse_device(line) for line in lines if line.strip())


def parse_device(line: str) -> GpuDevice:
    """A line of nvidia-smi's CSV, memory in MiB."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(_FIELDS) or not fields[2].isdecimal():
        raise Failure(
            f"nvidia-smi printed {line.strip()!r}, not {len(_FIELDS)} fields",
            "check the driver: nvidia-smi must list each GPU",
            ExitCode.ENVIRONMENT,
        )
    name, uuid, memory, driver, capability, mig = fields
    return GpuDevice(name, uuid, int(memory) << 20, driver, capability, mig == "Enabled")
