"""What was found on a machine that a release is to run on; None where it could not be found out."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU as its driver tells of it now."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    free_bytes: int
    driver: str
    compute_capability: str
    mig: bool


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A program that computes on a GPU; its memory is None where the driver does not tell."""

    pid: int
    name: str
    gpu_uuid: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """A container runtime that answers; `gpus` tells whether it can hand out GPUs."""

    name: str
    version: str
    gpus: bool


@dataclass(frozen=True, slots=True)
class ImageState:
    """An image that is there, by its digests, and the versions in it as far as it tells them."""

    digests: tuple[str, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Accelerators:
    """All GPUs, what runs on them, and how each pair is linked ("NV18", "PIX", "SYS"; by index, smaller first)."""

    gpus: tuple[GpuState, ...]
    processes: tuple[GpuProcess, ...] = ()
    links: Mapping[tuple[int, int], str] | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine apart from its GPUs. `now_s` is its clock (seconds since 1970), `busy_ports` are those in use.

    `locked_memory_bytes` None means without limit; `unwritable` says why the service user cannot write ("": it can).
    """

    now_s: float
    clock_synchronised: bool | None
    disk_free_bytes: int | None
    shared_memory_bytes: int | None
    locked_memory_bytes: int | None
    busy_ports: tuple[int, ...]
    machine: str
    unwritable: str
    user: str
