"""How and where engines are compiled on this host; no part of any key."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum
from draftyard.nouns.gpu import Gpu


class Runtime(StrEnum):
    """Where the builder runs: `host` means in place."""

    HOST = "host"
    DOCKER = "docker"
    PODMAN = "podman"
    ENROOT = "enroot"


@dataclass(frozen=True, slots=True)
class BuildDevice:
    """One GPU that engines are compiled on, by its identity; `driver` and `compute_capability` go into receipts."""

    product: Gpu
    uuid: str
    name: str
    driver: str
    compute_capability: str


@dataclass(frozen=True, slots=True)
class Builder:
    """The program that compiles: its executable, the Python beside it, and for a container the image.

    `timeout_s` bounds one engine, `memory_bytes` the resident memory of its build (None: no bound).
    """

    runtime: Runtime
    executable: str
    python: str
    image: str
    timeout_s: float
    memory_bytes: int | None = None
