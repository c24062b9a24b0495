"""Reads and writes safetensors files: headers checked strictly, bytes mapped and streamed, never held whole."""

import errno
import json
import mmap
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from weakref import finalize

from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.tensor import TensorHeader, TensorSpec, TensorType

# The format's own ceiling (safetensors, MAX_HEADER_SIZE); a longer one is no safetensors file at all.
_MAX_HEADER_BYTES = 100_000_000
_POINTER_START = b"version https://git-lfs."
_COPY_BYTES = 8 * 1024 * 1024


class MappedTensorFile:
    """An open safetensors file; views returned by `read` keep the mapping alive after the object is gone."""

    def __init__(self, path: Path, headers: Mapping[str, TensorHeader], metadata: Mapping[str, str]) -> None:
        """Map `path`, whose headers were read before."""
        self._headers = dict(headers)
        self._metadata = dict(metadata)
        self._path = path
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        """Headers by tensor name."""
        return self._headers

    @property
    def metadata(self) -> Mapping[str, str]:
        """The free text pairs of the file (`__metadata__`)."""
        return self._metadata

    def read(self, name: str) -> memoryview:
        """The little-endian bytes of one tensor, mapped, not copied; KeyError when it is absent."""
        header = self._headers[name]
        return self._view[header.offset_bytes : header.offset_bytes + header.size_bytes]

    def read_into(self, name: str, offset_bytes: int, target: memoryview, *, once: bool = False) -> None:
        """Fill `target` with the bytes of one tensor from `offset_bytes` on; nothing is mapped, any thread may ask.

        `once` tells the kernel that nobody comes back for them soon. Failure when the file ends before the tensor does.
        """
        at = self._headers[name].offset_bytes + offset_bytes
        read = 0
        while read < target.nbytes:
            count = os.preadv(self._descriptor, [target[read:]], at + read)
            if count == 0:
                raise Failure(f"{self._path.name} became shorter while it was read", "leave the model alone meanwhile")
            read += count
        if once:
            os.posix_fadvise(self._descriptor, at, read, os.POSIX_FADV_DONTNEED)


def open_tensor_file(path: Path) -> MappedTensorFile:
    """Open a safetensors file; Failure names what is wrong: absent, LFS pointer, truncated, bad header or offsets."""
    headers, metadata = read_tensor_headers(path)
    return MappedTensorFile(path, headers, metadata)


def open_weights(path: Path, headers: Iterable[TensorHeader]) -> MappedTensorFile:
    """Open a file whose tensors were found before, whatever its format: those of `headers` that lie in it.

    Failure when it is gone, or too short for them.
    """
    own = {header.name: header for header in headers if header.file == path.name}
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise Failure(f"{path.name} cannot be read: {error.strerror}", "fetch the file again") from error
    if any(header.offset_bytes + header.size_bytes > size_bytes for header in own.values()):
        raise Failure(f"{path.name} is shorter than it was", "leave the model alone while it is read")
    return MappedTensorFile(path, own, {})


def read_tensor_headers(path: Path) -> tuple[dict[str, TensorHeader], dict[str, str]]:
    """Headers by name and the metadata pairs; reads only the first bytes. Failure as for `open_tensor_file`."""
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            raw = _read_header_text(path.name, file, size_bytes)
    except FileNotFoundError as error:
        raise Failure(f"{path.name} is missing", "fetch the file again") from error
    except OSError as error:
        raise Failure(f"{path.name} cannot be read: {error.strerror}", "check the file and its permissions") from error
    document = _parse_header(path.name, raw)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(path.name, "its __metadata__ is no map of texts")
    start = 8 + len(raw)
    headers = [_tensor_header(path.name, name, entry, start) for name, entry in document.items()]
    _check_layout(path.name, headers, start, size_bytes)
    return {header.name: header for header in headers}, metadata


def same_bytes(first: memoryview, second: memoryview) -> bool:
    """True when both hold the same bytes; compared in pieces, so that large tensors need no copy."""
    if first.nbytes != second.nbytes:
        return False
    steps = range(0, first.nbytes, _COPY_BYTES)
    return all(first[at : at + _COPY_BYTES] == second[at : at + _COPY_BYTES] for at in steps)


def tensor_file_bytes(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> int:
    """Exact size of the file that `TensorWriter` makes of these tensors."""
    text, _ = _layout(specs, metadata)
    return 8 + len(text) + sum(spec.size_bytes for spec in specs)


def free_bytes(directory: Path) -> int:
    """Bytes a user may still write on the file system of `directory`."""
    return shutil.disk_usage(directory).free


def link_tensor_file(source: Path, destination: Path) -> None:
    """Give a file a second name (hard link), or copy it when that name is on another file system."""
    try:
        os.link(source, destination)
    except FileNotFoundError as error:
        raise Failure(f"{source.name} is missing", "build the checkpoint again") from error
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        try:
            shutil.copyfile(source, destination)
        except OSError as copy_error:
            destination.unlink(missing_ok=True)
            raise _not_written(destination.name, copy_error) from copy_error


def write_hollow_file(path: Path, specs: Sequence[TensorSpec]) -> None:
    """A file of the right header and size whose weights are a hole: read as zeros, and no room on the disk."""
    text, _ = _layout(specs, {})
    try:
        with path.open("xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(tensor_file_bytes(specs, {}))
    except OSError as error:
        raise _not_written(path.name, error) from error


class TensorWriter:
    """Writes one safetensors file whose tensors are known first and given one by one, in any order.

    Leaving the `with` block without an error flushes to the disk; an error, or a tensor never given, removes the file.
    """

    def __init__(
        self, path: Path, specs: Sequence[TensorSpec], metadata: Mapping[str, str], *, at_once: bool = False
    ) -> None:
        """Create `path`, which must not exist yet; `at_once` sends what is written to the disk without waiting."""
        text, offsets = _layout(specs, metadata)
        self._path = path
        self._specs = {spec.name: spec for spec in specs}
        self._start = 8 + len(text)
        self._offsets = offsets
        self._waiting = {spec.name: spec.size_bytes for spec in specs}
        self._at_once = at_once
        self._lock = threading.Lock()
        self._file: BinaryIO = path.open("xb", buffering=0)
        try:
            self._put(0, len(text).to_bytes(8, "little") + text)
        except Failure:
            self._abandon()
            raise

    def __enter__(self) -> "TensorWriter":
        """The writer itself."""
        return self

    def write(self, name: str, data: memoryview | bytes) -> None:
        """Write the bytes of one tensor; ValueError when it is unknown, given twice or of another size."""
        size_bytes = memoryview(data).nbytes
        if name in self._specs and size_bytes != self._specs[name].size_bytes:
            raise ValueError(f"{name} has {size_bytes} bytes, expected {self._specs[name].size_bytes}")
        self.write_at(name, 0, data)

    def write_at(self, name: str, offset_bytes: int, data: memoryview | bytes) -> None:
        """Write a part of one tensor, from `offset_bytes` on; parts may come in any order and from any thread.

        ValueError when the tensor is unknown or would get more bytes than it has.
        """
        view = memoryview(data).cast("B")
        with self._lock:
            left = self._waiting.get(name)
            if left is None or view.nbytes > left or offset_bytes + view.nbytes > self._specs[name].size_bytes:
                raise ValueError(f"{name} is not expected in {self._path.name}, or was written before")
            self._waiting[name] = left - view.nbytes
        start = self._start + self._offsets[name] + offset_bytes
        self._put(start, view)
        if self._at_once:
            # On Linux this begins the writing of pages that are not on the disk yet; the file keeps them.
            os.posix_fadvise(self._file.fileno(), start, view.nbytes, os.POSIX_FADV_DONTNEED)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the file, or remove it."""
        if kind is not None:
            self._abandon()
            return
        lacking = sorted(name for name, left in self._waiting.items() if left)
        if lacking:
            self._abandon()
            raise ValueError(f"{self._path.name} lacks {lacking[:10]}")
        try:
            os.fsync(self._file.fileno())
        except OSError as problem:
            self._abandon()
            raise _not_written(self._path.name, problem) from problem
        self._file.close()

    def _put(self, offset: int, data: memoryview | bytes) -> None:
        view, done = memoryview(data), 0
        try:
            while done < view.nbytes:
                done += os.pwrite(self._file.fileno(), view[done:], offset + done)
        except OSError as problem:
            raise _not_written(self._path.name, problem) from problem

    def _abandon(self) -> None:
        try:
            self._file.close()
        except OSError:
            # Some file systems tell only now that a write failed; the file goes anyway.
            pass
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The checked fields of one header entry; offsets count from the end of the header."""

    type: TensorType
    shape: tuple[int, ...]
    begin: int
    end: int


def _broken(file: str, what: str) -> Failure:
    return Failure(f"{file} is no valid safetensors file: {what}", "fetch the file again, or save it again")


def _not_written(file: str, error: OSError) -> Failure:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure(f"no space left while writing {file}", "free disk space and build again", ExitCode.ENVIRONMENT)
    return Failure(f"{file} cannot be written: {error.strerror}", "check the disk", ExitCode.ENVIRONMENT)


def _read_header_text(name: str, file: BinaryIO, size_bytes: int) -> bytes:
    start = file.read(len(_POINTER_START))
    if start == _POINTER_START:
        raise _pointer(name, start + file.read(1024))
    if size_bytes < 8:
        raise Failure(f"{name} is truncated: {size_bytes} bytes, too short for a header", "fetch the file again")
    header_bytes = int.from_bytes(start[:8], "little")
    if header_bytes > _MAX_HEADER_BYTES or header_bytes < 2:
        raise _broken(name, f"impossible header length {header_bytes}")
    if 8 + header_bytes > size_bytes:
        raise Failure(
            f"{name} is truncated: the header alone needs {8 + header_bytes} bytes, the file has {size_bytes}",
            "fetch the file again",
        )
    file.seek(8)
    return file.read(header_bytes)


def _pointer(name: str, text: bytes) -> Failure:
    size = "unknown"
    for line in text.decode("ascii", "replace").splitlines():
        if line.startswith("size "):
            size = line.removeprefix("size ").strip()
    return Failure(
        f"{name} is a Git LFS pointer, fetch the real file (expected size {size})",
        "run `git lfs pull` in the model's own checkout, or download the file",
    )


def _parse_header(file: str, raw: bytes) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            names = [name for name, _ in pairs]
            raise _broken(file, f"{next(name for name in names if names.count(name) > 1)!r} appears twice")
        return fields

    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _broken(file, f"its header is no JSON ({error})") from error
    if not isinstance(document, dict):
        raise _broken(file, "its header is no JSON object")
    return document


def _tensor_header(file: str, name: str, entry: object, start: int) -> TensorHeader:
    fields = _entry(file, name, entry)
    header = TensorHeader(name, fields.type, fields.shape, file, start + fields.begin, fields.end - fields.begin)
    if header.size_bytes != TensorSpec(name, fields.type, fields.shape).size_bytes:
        raise _broken(
            file, f"{name} of shape {list(fields.shape)} and type {fields.type} cannot have {header.size_bytes} bytes"
        )
    return header


_KINDS = frozenset(member.value for member in TensorType)


def _entry(file: str, name: str, entry: object) -> _Entry:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _broken(file, f"the entry of {name} must hold dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if kind not in _KINDS:
        raise _broken(file, f"{name} has the unknown element type {kind!r}")
    if not _is_counts(shape):
        raise _broken(file, f"{name} has the impossible shape {shape!r}")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(file, f"{name} has the impossible offsets {offsets!r}")
    return _Entry(TensorType(kind), tuple(shape), offsets[0], offsets[1])


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(file: str, headers: Sequence[TensorHeader], start: int, size_bytes: int) -> None:
    """Tensors must follow one another without overlap or hole, and end where the file ends (the format's rule)."""
    at, before = start, "the header"
    for header in sorted(headers, key=lambda item: (item.offset_bytes, item.size_bytes)):
        if header.offset_bytes < at:
            raise _broken(file, f"{header.name} overlaps {before}")
        if header.offset_bytes > at:
            raise _broken(file, f"{header.offset_bytes - at} bytes before {header.name} belong to no tensor")
        at, before = header.offset_bytes + header.size_bytes, header.name
    if at > size_bytes:
        raise Failure(
            f"{file} is truncated: {before} ends at byte {at}, the file has {size_bytes}", "fetch the file again"
        )
    if at < size_bytes:
        raise _broken(file, f"{size_bytes - at} bytes at its end belong to no tensor")


def _layout(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """Header text and offset of each tensor; wide elements first, so that every tensor is aligned when mapped."""
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError("a tensor name is given twice")
    document: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offsets: dict[str, int] = {}
    at = 0
    for spec in sorted(specs, key=lambda item: (-item.type.item_bytes, item.name)):
        offsets[spec.name] = at
        at += spec.size_bytes
        document[spec.name] = {
            "dtype": spec.type.value,
            "shape": list(spec.shape),
            "data_offsets": [offsets[spec.name], at],
        }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8), offsets
