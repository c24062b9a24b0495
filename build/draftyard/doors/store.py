"""The artefact store: content below keys, an artefact exists when its receipt does, a killed build leaves none."""

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from draftyard.doors.file_digest import file_digest
from draftyard.doors.locks import exclusive, exclusive_if_free
from draftyard.nouns.artifact import RECEIPT_NAME, STORE_FORMAT, FileRecord, Receipt
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import ExitCode, Failure, Problem

_HASH_THREADS = 4
_STAGING = ".staging-"
_LOCKS = ".locks"

# Fills an empty directory with an artefact; returns notes for the receipt.
Fill: TypeAlias = Callable[[Path], tuple[str, ...]]
Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StoreRoots:
    """Where artefacts lie below the output directory."""

    out: Path

    def folder(self, kind: StepKind) -> Path:
        """The directory that holds all artefacts of a kind."""
        place = Path("triton_repo", "out") if kind is StepKind.REPOSITORY else Path("engines", "out", kind.value)
        return self.out / place

    @property
    def by_recipe(self) -> Path:
        """What was built last, a file for each recipe name."""
        return self.out / "engines" / "out" / "by-recipe"

    @property
    def cache(self) -> Path:
        """Hashes of model files that did not change."""
        return self.out / "engines" / "out" / ".cache"


@dataclass(frozen=True, slots=True)
class Ensured:
    """An artefact that exists; `made` tells whether this call made it."""

    receipt: Receipt
    made: bool


class Store:
    """Reads and makes artefacts. `tool_versions` and `call` go into the receipts of what is made."""

    def __init__(self, roots: StoreRoots, tool_versions: Mapping[str, str], call: tuple[str, ...]) -> None:
        self._roots = roots
        self._tool_versions = dict(tool_versions)
        self._call = call
        # Hard links share bytes: what one artefact hashed, the next need not read again.
        self._hashes: dict[tuple[int, int, int, int], str] = {}
        self._guard = threading.Lock()

    def path(self, kind: StepKind, key: str) -> Path:
        """Where the artefact lies, or would."""
        return self._roots.folder(kind) / key

    def receipt(self, step: Step) -> Receipt | None:
        """The receipt of a whole artefact; None when there is none.

        Failure when something else lies in its place, when a file is missing or has another size, or when a newer
        version wrote it. Contents are not read; `check` does that.
        """
        directory = self.path(step.kind, step.key)
        if not directory.exists() and not directory.is_symlink():
            return None
        if not directory.is_dir():
            raise Failure(f"{directory} is a file where {step.label} should be", f"remove it: rm {directory}")
        receipt = _read_receipt(directory, step)
        for record in receipt.files:
            _check_size(directory, record, step.label)
        return receipt

    def ensure(self, step: Step, fill: Fill, tell: Tell) -> Ensured:
        """The artefact of this step, made now when it is not there; one maker at a time, others wait and take it.

        While it waits, `tell` gets the same line again and again, and may raise to give up.
        Failure of the maker passes on; no space and other errors of the disk become a Failure of the environment.
        Nothing of an unfinished artefact stays.
        """
        folder = self._roots.folder(step.kind)
        lock = exclusive(_lock_path(folder, step.key), lambda who: tell(f"{step.label}: waiting for {who}"))
        with _disk_errors(step.label), lock:
            found = self.receipt(step)
            if found is not None:
                return Ensured(found, False)
            _remove_stagings(folder, step.key)
            return Ensured(self._make(step, fill, folder), True)

    def check(self, step: Step) -> list[Problem]:
        """Read every byte again; what is missing, changed, or does not belong there. Failure as for `receipt`."""
        receipt = self.receipt(step)
        if receipt is None:
            return [Problem(f"{step.label} is missing", "build it")]
        directory = self.path(step.kind, step.key)
        hint = f"remove {directory} and build again"
        found = {record.path: record for record in self._records(directory)}
        promised = {record.path: record for record in receipt.files}
        problems = [
            Problem(f"{step.label}: {name} changed since it was built", hint)
            for name in sorted(set(found) & set(promised))
            if found[name] != promised[name]
        ]
        extra = sorted(set(found) - set(promised))
        problems.extend(Problem(f"{step.label}: {name} does not belong there", hint) for name in extra)
        return problems

    def sweep(self) -> None:
        """Remove what killed builds left; what a living build works on is locked and stays."""
        for kind in StepKind:
            folder = self._roots.folder(kind)
            for staging in sorted(folder.glob(f"{_STAGING}*")):
                key = staging.name.removeprefix(_STAGING).rpartition("-")[0]
                lock = _lock_path(folder, key)
                lock.parent.mkdir(exist_ok=True)
                with exclusive_if_free(lock) as free:
                    if free:
                        shutil.rmtree(staging, ignore_errors=True)

    def _make(self, step: Step, fill: Fill, folder: Path) -> Receipt:
        staging = folder / f"{_STAGING}{step.key}-{os.getpid()}"
        staging.mkdir()
        began = time.monotonic()
        try:
            notes = fill(staging)
            receipt = self._new_receipt(step, staging, notes, time.monotonic() - began)
            text = json.dumps(receipt.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            (staging / RECEIPT_NAME).write_text(text, encoding="utf-8")
            _sync_tree(staging)
            staging.rename(folder / step.key)
            _sync(folder)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        return receipt

    def _new_receipt(self, step: Step, staging: Path, notes: tuple[str, ...], seconds: float) -> Receipt:
        return Receipt(
            store_format=STORE_FORMAT,
            kind=step.kind.value,
            key=step.key,
            label=step.label,
            parameters=step.parameters,
            inputs=step.inputs,
            toolchain=step.toolchain,
            tool_versions=self._tool_versions,
            call=self._call,
            seconds=round(seconds, 3),
            notes=notes,
            files=self._records(staging),
        )

    def _records(self, directory: Path) -> tuple[FileRecord, ...]:
        paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        names = [path.relative_to(directory).as_posix() for path in paths]
        wanted = [(name, path) for name, path in zip(names, paths, strict=True) if name != RECEIPT_NAME]
        with ThreadPoolExecutor(_HASH_THREADS) as pool:
            hashes = list(pool.map(self._hash, [path for _, path in wanted]))
        return tuple(
            FileRecord(path=name, size_bytes=path.stat().st_size, digest=content)
            for (name, path), content in zip(wanted, hashes, strict=True)
        )

    def _hash(self, path: Path) -> str:
        state = path.stat()
        identity = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        with self._guard:
            known = self._hashes.get(identity)
        if known is not None:
            return known
        content = file_digest(path)
        with self._guard:
            self._hashes[identity] = content
        return content


def _lock_path(folder: Path, key: str) -> Path:
    return folder / _LOCKS / f"{key}.lock"


def _read_receipt(directory: Path, step: Step) -> Receipt:
    remove = f"remove it and build again: rm -r {directory}"
    try:
        document = json.loads((directory / RECEIPT_NAME).read_bytes())
    except FileNotFoundError:
        raise Failure(f"{directory} has no receipt; draftyard did not make it", remove) from None
    except (OSError, ValueError) as error:
        raise Failure(f"the receipt of {step.label} cannot be read: {error}", remove) from error
    written = document.get("store_format") if isinstance(document, dict) else None
    if isinstance(written, int) and written > STORE_FORMAT:
        raise Failure(
            f"{step.label} was written by a newer version (store format {written}, this one knows {STORE_FORMAT})",
            "update draftyard, or build into another directory with --out",
        )
    try:
        receipt = Receipt.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Failure(f"the receipt of {step.label} is broken: {where}: {first['msg']}", remove) from error
    if receipt.key != step.key:
        raise Failure(f"{directory} holds the artefact {receipt.key[:12]}, not {step.key[:12]}", remove)
    return receipt


def _check_size(directory: Path, record: FileRecord, label: str) -> None:
    hint = f"remove it and build again: rm -r {directory}"
    try:
        found = (directory / record.path).stat().st_size
    except FileNotFoundError:
        raise Failure(f"{label}: {record.path} is missing from {directory}", hint) from None
    if found != record.size_bytes:
        raise Failure(f"{label}: {record.path} has {found} bytes, its receipt says {record.size_bytes}", hint)


def _remove_stagings(folder: Path, key: str) -> None:
    """Whoever holds the key's lock is its only maker, so every staging directory of that key is a leftover."""
    for staging in folder.glob(f"{_STAGING}{key}-*"):
        shutil.rmtree(staging, ignore_errors=True)


def _sync_tree(directory: Path) -> None:
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _disk_errors(label: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = (
            "free disk space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the disk and its permissions"
        )
        place = f" ({error.filename})" if error.filename else ""
        raise Failure(f"{label} cannot be made: {reason}{place}", hint, ExitCode.ENVIRONMENT) from error
