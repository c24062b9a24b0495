"""Lets a model directory appear whole or not at all, and tells cheaply whether one is still what was written."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure

RECEIPT = "materialised.json"
_READ_BYTES = 8 * 1024 * 1024


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Yield an empty directory beside `directory` that takes its name when the block ends without an error.

    A directory of that name is replaced; after an error, nothing of the new one is left.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        yield stage
        stage.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        stage.rename(directory)
    except OSError as error:
        raise Failure(
            f"{directory.name} cannot be written: {error.strerror or error}", "check the disk", ExitCode.ENVIRONMENT
        ) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def write_receipt(stage: Path, made_from: Mapping[str, str]) -> dict[str, str]:
    """Record size and SHA-256 of every file in `stage`, and what they were made from; returns digests by file name."""
    digests = {path.name: file_digest(path) for path in sorted(stage.iterdir())}
    files: dict[str, Json] = {
        name: {"sha256": sha256, "size_bytes": (stage / name).stat().st_size} for name, sha256 in digests.items()
    }
    write_json(stage / RECEIPT, {"made_from": dict(made_from), "files": files})
    return digests


def finished_digests(directory: Path, made_from: Mapping[str, str]) -> dict[str, str] | None:
    """Digests by file name when `directory` was made from `made_from` and each file still has its size, else None."""
    try:
        receipt = json.loads((directory / RECEIPT).read_text(encoding="utf-8"))
        files = receipt["files"]
        if receipt["made_from"] != dict(made_from):
            return None
        if any((directory / name).stat().st_size != entry["size_bytes"] for name, entry in files.items()):
            return None
        return {str(name): str(entry["sha256"]) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            total.update(block)
    return total.hexdigest()


def require_digest(name: str, found: str, expected: str) -> None:
    """Failure when a file is not the one that this version of the project was tested with."""
    if found != expected:
        raise Failure(
            f"{name} has SHA-256 {found}, expected {expected}",
            "fetch the file again; if that does not help, install the versions in requirements/",
        )


def write_json(path: Path, value: Mapping[str, Json]) -> None:
    """Write JSON for people: indented, keys sorted."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def bfloat16_bytes(values: NDArray[np.float32] | NDArray[np.float64]) -> memoryview:
    """The values as little-endian bfloat16, rounded to nearest, ties to even; finite values only (ValueError).

    float64 values must already be exact in float32 or far from a tie: they pass through float32.
    """
    single = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(single).all():
        raise ValueError("a weight is not finite")
    bits = single.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2").reshape(-1).data.cast("B")


def float32_of_bfloat16(data: memoryview, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """bfloat16 bytes as float32 values of `shape` (exact)."""
    words = np.frombuffer(data, dtype="<u2").astype(np.uint32)
    return np.asarray((words << np.uint32(16)).view(np.float32)).reshape(shape)
