"""What lies in the store: an artefact exists when its receipt does."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, JsonValue

RECEIPT_NAME = "receipt.json"
# 2: files carry the digest of their pieces (doors/file_digest.py) in place of one SHA-256.
STORE_FORMAT = 2


class FileRecord(BaseModel):
    """One file of an artefact."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    size_bytes: int
    digest: str


class Receipt(BaseModel):
    """Which blueprint step, which tool, which call, how long, which files with which hashes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    store_format: int
    kind: str
    key: str
    label: str
    parameters: Mapping[str, JsonValue] = Field(default_factory=dict)
    inputs: tuple[str, ...]
    toolchain: Mapping[str, JsonValue] = Field(default_factory=dict)
    tool_versions: Mapping[str, str] = Field(default_factory=dict)
    call: tuple[str, ...] = ()
    seconds: float
    notes: tuple[str, ...] = ()
    files: tuple[FileRecord, ...]
