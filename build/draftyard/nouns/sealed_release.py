"""A sealed release: what is in it, what its engines are bound to, and each file with its size and digest."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from draftyard.nouns.artifact import FileRecord
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.toolchain import Toolchain

RELEASE_FORMAT = 1
MANIFEST_NAME = "release.json"
SIGNATURE_NAME = "release.json.sig"
SIGNATURE_NAMESPACE = "draftyard"
LARGEST_MANIFEST_BYTES = 64 << 20


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineFacts(_Part):
    """One engine and what a plan is bound to; `driver`, `gpu` and `machine` are those of its build.

    None where no builder was involved: the reference lane's engines run anywhere. `needs_peer_access` tells of an
    engine whose sums over ranks do not work without it.
    """

    place: str
    ranks: Annotated[int, Field(ge=1)]
    size_bytes: Annotated[int, Field(ge=0)]
    tensorrt_llm: str | None = None
    tensorrt: str | None = None
    driver: str | None = None
    compute_capability: str | None = None
    gpu: str | None = None
    machine: str | None = None
    needs_peer_access: bool = False


class ReleasedVariant(_Part):
    """One deployable choice; `repository` is its folder in the release, `gpus` how many devices it takes."""

    name: str
    lane: Lane
    speculator: SpeculatorKind
    precision: Precision
    gpu: Gpu
    gpus: Annotated[int, Field(ge=0)]
    repository: str
    repository_key: str
    keys: tuple[str, ...]
    engines: tuple[EngineFacts, ...]


class ReleasedImage(_Part):
    """The server's container image; `archive` is its file in the release, None when it has to be there already."""

    reference: str
    digest: str | None = None
    archive: str | None = None


class Release(_Part):
    """The manifest `release.json`; `files` lists everything else but its signature, sorted by path.

    `built_at` (UTC) is when the newest artefact was built. An unsigned release says so.
    """

    release_format: int
    name: str
    tool_version: str
    built_at: str
    signed: bool
    toolchain: Toolchain
    image: ReleasedImage | None
    variants: tuple[ReleasedVariant, ...]
    files: tuple[FileRecord, ...]
