"""A sealed release as a directory: hard links to what lies in the store, written beside and renamed."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG

from pydantic import BaseModel, ValidationError

from draftyard.doors.file_digest import bytes_digest, file_digest
from draftyard.doors.tensors import link_tensor_file
from draftyard.nouns.artifact import FileRecord
from draftyard.nouns.errors import ExitCode, Failure, Problem
from draftyard.nouns.sealed_release import (
    LARGEST_MANIFEST_BYTES,
    MANIFEST_NAME,
    RELEASE_FORMAT,
    SIGNATURE_NAME,
    Release,
)

_HASH_THREADS = 4
_AGAIN = "take the release from its source again"


@dataclass(frozen=True, slots=True)
class SealedFile:
    """One file of a release: its record, and where its bytes are."""

    record: FileRecord
    source: Path | bytes


def sealed_text(path: str, text: str | bytes) -> SealedFile:
    """A file that was made in memory."""
    data = text.encode("utf-8") if isinstance(text, str) else text
    return SealedFile(FileRecord(path=path, size_bytes=len(data), digest=bytes_digest(data)), data)


def sealed_file(path: str, source: Path, digest: str | None = None) -> SealedFile:
    """A file on the disk; a known `digest` is held against its bytes when they are sealed."""
    real = source.resolve(strict=True)
    size = real.stat().st_size
    return SealedFile(FileRecord(path=path, size_bytes=size, digest=digest or file_digest(real)), real)


def inside(root: Path, name: str) -> Path:
    """The real file `name` of an artefact; Failure when a link leads out of it or nowhere."""
    path = root / name
    try:
        real = path.resolve(strict=True)
    except OSError as error:
        raise Failure(f"{name} leads to no file: {error.strerror}", "build it again, from real files") from None
    if not real.is_relative_to(root.resolve()):
        raise Failure(f"{name} is a link that leads out of {root.name}", "put the file itself in its place")
    return real


def newest_change(paths: Sequence[Path]) -> str:
    """When the newest of those files that exist was written (UTC, ISO 8601, to the second)."""
    changes = [path.stat().st_mtime for path in paths if path.is_file()]
    return datetime.fromtimestamp(int(max(changes, default=0)), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_directory(directory: Path, manifest: bytes, signature: bytes | None, files: Sequence[SealedFile]) -> None:
    """Link every file below `directory`, which must not exist; nothing of an unfinished one stays.

    Every byte is read once: Failure names the first file that is not what its record says.
    """
    staging = directory.with_name(f".{directory.name}.sealing-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        for one in files:
            _place(staging / one.record.path, one.source)
        write_manifest(staging, manifest, signature)
        problem = first_difference(staging, [one.record for one in files])
        if problem is not None:
            raise Failure(problem.message, "package the recipe again", ExitCode.WORK_FAILED)
        staging.rename(directory)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        words = f"the release cannot be written: {error.strerror}{place}"
        raise Failure(words, "check the disk and its permissions", ExitCode.ENVIRONMENT) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_manifest(directory: Path, manifest: bytes, signature: bytes | None) -> None:
    """The manifest and, where there is one, its signature."""
    (directory / MANIFEST_NAME).write_bytes(manifest)
    if signature is not None:
        (directory / SIGNATURE_NAME).write_bytes(signature)


def parse_release(data: bytes) -> Release:
    """The manifest; Failure when it is none, or of a version that is not known yet."""
    try:
        known = _Version.model_validate_json(data)
    except ValidationError:
        raise Failure(f"{MANIFEST_NAME} is no manifest of a release", _AGAIN, ExitCode.WORK_FAILED) from None
    if known.release_format > RELEASE_FORMAT:
        raise Failure(
            f"the release has format {known.release_format}, this version knows {RELEASE_FORMAT}",
            "use the draftyard whose wheel is in the release",
            ExitCode.WORK_FAILED,
        )
    try:
        return Release.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        words = f"{MANIFEST_NAME} is broken: {where}: {first['msg']}"
        raise Failure(words, _AGAIN, ExitCode.WORK_FAILED) from None


class _Version(BaseModel):
    """What every version of the format has in common."""

    release_format: int


def read_manifest(directory: Path) -> tuple[bytes, bytes | None]:
    """The bytes of `release.json` and of its signature (None: there is none). Failure when there is no manifest."""
    path, signature = directory / MANIFEST_NAME, directory / SIGNATURE_NAME
    if path.is_symlink() or not path.is_file():
        raise Failure(f"{directory} holds no {MANIFEST_NAME}", "give the directory or the archive of a release")
    if path.stat().st_size > LARGEST_MANIFEST_BYTES:
        raise Failure(f"{MANIFEST_NAME} is too large to be a manifest", _AGAIN, ExitCode.WORK_FAILED)
    if signature.is_symlink():
        raise Failure(f"{SIGNATURE_NAME} is a link", _AGAIN, ExitCode.WORK_FAILED)
    return path.read_bytes(), signature.read_bytes() if signature.is_file() else None


def tree_problems(directory: Path, records: Sequence[FileRecord]) -> list[Problem]:
    """Names and sizes against the manifest, sorted by path: missing, extra, links, other kinds, wrong sizes."""
    promised = {record.path: record.size_bytes for record in records}
    found = dict(_walk(directory))
    problems = [(name, _size_problem(name, size, found.get(name))) for name, size in promised.items()]
    known = {*promised, MANIFEST_NAME, SIGNATURE_NAME}
    kinds = {name: f"is {kind} and " if isinstance(kind, str) else "" for name, kind in found.items()}
    extra = [(name, f"{name} {kinds[name]}does not belong there") for name in found if name not in known]
    return [Problem(words, _AGAIN) for _, words in sorted([*problems, *extra]) if words]


def first_difference(directory: Path, records: Sequence[FileRecord]) -> Problem | None:
    """Read every byte; the first file, in the order of the manifest, that has other bytes than its record says."""
    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        read = pool.map(_digests(directory), records)
        for record, found in zip(records, read, strict=True):
            if found != record.digest:
                pool.shutdown(wait=False, cancel_futures=True)
                return Problem(f"{record.path} has other bytes than were sealed", _AGAIN)
    return None


def _digests(directory: Path) -> Callable[[FileRecord], str]:
    """Names of one file (hard links) are read once."""
    known: dict[tuple[int, int], str] = {}

    def digest_of(record: FileRecord) -> str:
        path = directory / record.path
        state = path.stat(follow_symlinks=False)
        identity = (state.st_dev, state.st_ino)
        if identity not in known:
            known[identity] = file_digest(path)
        return known[identity]

    return digest_of


def _size_problem(name: str, promised: int, found: int | str | None) -> str:
    if found is None:
        return f"{name} is missing"
    if isinstance(found, str):
        return f"{name} is {found}"
    return "" if found == promised else f"{name} has {found} bytes, the manifest says {promised}"


def _walk(directory: Path, above: str = "") -> Iterator[tuple[str, int | str]]:
    """Each name below a directory with its size, or with words for what is no plain file; links are not followed."""
    with os.scandir(directory) as entries:
        for entry in entries:
            name, state = f"{above}{entry.name}", entry.stat(follow_symlinks=False)
            if S_ISDIR(state.st_mode):
                yield from _walk(directory / entry.name, f"{name}/")
            elif S_ISREG(state.st_mode):
                yield name, state.st_size
            else:
                yield name, "a link" if S_ISLNK(state.st_mode) else "no plain file"


def _place(path: Path, source: Path | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, bytes):
        path.write_bytes(source)
    else:
        link_tensor_file(source, path)
