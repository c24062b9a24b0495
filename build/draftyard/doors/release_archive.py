"""A sealed release as one file, tar or tar.zst: written and checked in one pass, never unpacked for that."""

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from draftyard.doors.file_digest import PIECE_BYTES, StreamDigest, hash_pool
from draftyard.doors.release_files import SealedFile
from draftyard.doors.shell import reading_from, writing_into
from draftyard.nouns.artifact import FileRecord
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.sealed_release import LARGEST_MANIFEST_BYTES, MANIFEST_NAME, SIGNATURE_NAME

_BLOCK = 512
_RECORD = 20 * _BLOCK
_ZSTD_TIMEOUT_S = 24 * 3600.0
_LONGEST_NAME_BYTES = 4096
_AGAIN = "take the release from its source again"


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive; `link` names the earlier entry with the same bytes, "" where the bytes follow."""

    name: str
    size_bytes: int
    link: str


def is_compressed(path: Path) -> bool:
    """Whether the name says so; Failure for a name of neither form."""
    if path.name.endswith(".tar.zst"):
        return True
    if path.name.endswith(".tar"):
        return False
    raise Failure(f"{path.name} is no archive of a release", "name it NAME.tar or NAME.tar.zst")


def write_archive(path: Path, manifest: bytes, signature: bytes | None, files: Sequence[SealedFile]) -> None:
    """Manifest, signature, then the files in the manifest's order; the same input gives the same bytes.

    A file with the bytes of an earlier one is a link to it. Every byte is read once, hashed as it passes; Failure
    names the first file that is not what its record says, and nothing unfinished stays.
    """
    beside = path.with_name(f".{path.name}.sealing-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _output(path, beside) as stream, hash_pool() as pool:
            writer = _Writer(stream, pool)
            writer.text(MANIFEST_NAME, manifest)
            if signature is not None:
                writer.text(SIGNATURE_NAME, signature)
            for one in files:
                writer.file(one)
            writer.end()
        beside.replace(path)
    except OSError as error:
        words = f"the release cannot be written: {error.strerror}"
        raise Failure(words, "check the disk and its permissions", ExitCode.ENVIRONMENT) from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _output(path: Path, beside: Path) -> Iterator[IO[bytes]]:
    if is_compressed(path):
        # One level and one thread count for all: the number of threads changes no byte of zstd's frames.
        with writing_into(["zstd", "-q", "-3", "-T0", "-c"], beside, timeout_s=_ZSTD_TIMEOUT_S) as stream:
            yield stream
    else:
        with beside.open("wb") as file:
            yield file


class _Writer:
    def __init__(self, stream: IO[bytes], pool: ThreadPoolExecutor) -> None:
        self._stream, self._pool = stream, pool
        self._written = 0
        self._known: dict[tuple[str, int], str] = {}

    def text(self, name: str, data: bytes) -> None:
        self._header(name, len(data))
        self._bytes(data)
        self._pad(_BLOCK)

    def file(self, one: SealedFile) -> None:
        record = one.record
        same = self._known.setdefault((record.digest, record.size_bytes), record.path)
        if record.size_bytes and same != record.path:
            self._header(record.path, 0, same)
            return
        if isinstance(one.source, bytes):
            self.text(record.path, one.source)
            return
        self._header(record.path, record.size_bytes)
        found = StreamDigest(self._pool)
        with one.source.open("rb") as file:
            left = record.size_bytes
            while left and (piece := file.read(min(PIECE_BYTES, left))):
                found.update(piece)
                self._bytes(piece)
                left -= len(piece)
            longer = bool(file.read(1))
        if left or longer or found.hexdigest() != record.digest:
            words = f"{record.path} has other bytes than were sealed"
            raise Failure(words, "package the recipe again", ExitCode.WORK_FAILED)
        self._pad(_BLOCK)

    def end(self) -> None:
        self._bytes(bytes(2 * _BLOCK))
        self._pad(_RECORD)

    def _header(self, name: str, size_bytes: int, link: str = "") -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size_bytes, 0o644
        if link:
            info.type, info.linkname = tarfile.LNKTYPE, link
        self._bytes(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict"))

    def _bytes(self, data: bytes) -> None:
        self._stream.write(data)
        self._written += len(data)

    def _pad(self, size_bytes: int) -> None:
        self._bytes(bytes(-self._written % size_bytes))


class ArchiveReader:
    """Reads what `write_archive` wrote, entry by entry, and refuses every other kind of entry."""

    def __init__(self, stream: IO[bytes], pool: ThreadPoolExecutor) -> None:
        self._stream, self._pool = stream, pool
        self._ahead: Member | None = None
        self._place = "its beginning"

    def manifest(self) -> tuple[bytes, bytes | None]:
        """The bytes of `release.json` and of its signature (None: there is none), which come first."""
        member = self.next()
        if member is None or member.name != MANIFEST_NAME or member.size_bytes > LARGEST_MANIFEST_BYTES:
            raise _broken(f"the archive does not begin with {MANIFEST_NAME}")
        manifest = self._content(member)
        following = self.next()
        if following is not None and following.name == SIGNATURE_NAME and following.size_bytes <= 1 << 20:
            return manifest, self._content(following)
        self._ahead = following
        return manifest, None

    def next(self) -> Member | None:
        """The next entry; None at the end. Failure for links to elsewhere, folders, devices and broken entries."""
        if self._ahead is not None:
            member, self._ahead = self._ahead, None
            return member
        info, long = self._info(), {b"L": "", b"K": ""}
        while info is not None and info.type in long:
            if info.size > _LONGEST_NAME_BYTES:
                raise _broken(f"a name in the archive is too long, after {self._place}")
            text = self._exactly(info.size)
            self._exactly(-info.size % _BLOCK)
            long[info.type] = text.rstrip(b"\0").decode("utf-8", "surrogateescape")
            info = self._info()
        if info is None:
            return None
        name = long[b"L"] or info.name
        if info.type not in (tarfile.REGTYPE, tarfile.LNKTYPE):
            kind = {tarfile.SYMTYPE: "a link", tarfile.DIRTYPE: "a folder"}.get(info.type, "no plain file")
            raise _broken(f"{name} is {kind}")
        self._place = name
        linked = info.type == tarfile.LNKTYPE
        return Member(name, 0 if linked else info.size, (long[b"K"] or info.linkname) if linked else "")

    def digest(self, member: Member, write: Callable[[bytes], object] | None = None) -> str:
        """Read the entry's bytes and return their digest; `write` gets each piece."""
        found, left = StreamDigest(self._pool), member.size_bytes
        while left:
            piece = self._exactly(min(PIECE_BYTES, left))
            found.update(piece)
            if write is not None:
                write(piece)
            left -= len(piece)
        self._exactly(-member.size_bytes % _BLOCK)
        return found.hexdigest()

    def end(self) -> None:
        """Nothing but zeros may follow the last entry."""
        while data := self._stream.read(1 << 20):
            if data.strip(b"\0"):
                raise _broken("the archive goes on behind its end")

    def _content(self, member: Member) -> bytes:
        if member.link:
            raise _broken(f"{member.name} is a link")
        data = self._exactly(member.size_bytes)
        self._exactly(-member.size_bytes % _BLOCK)
        return data

    def _info(self) -> tarfile.TarInfo | None:
        block = self._exactly(_BLOCK)
        if not block.strip(b"\0"):
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise _broken(f"the archive is damaged after {self._place}: {error}") from None

    def _exactly(self, size_bytes: int) -> bytes:
        data = self._stream.read(size_bytes)
        while len(data) < size_bytes and (more := self._stream.read(size_bytes - len(data))):
            data += more
        if len(data) < size_bytes:
            raise _broken(f"the archive ends within {self._place}")
        return data


@contextmanager
def open_archive(path: Path) -> Iterator[ArchiveReader]:
    """Yield a reader at the beginning of an archive; Failure when it cannot be opened or decompressed."""
    compressed = is_compressed(path)
    if not path.is_file():
        raise Failure(f"there is no archive {path}", "give the directory or the archive of a release")
    with hash_pool() as pool:
        if compressed:
            with reading_from(["zstd", "-q", "-d", "-c", str(path)], timeout_s=_ZSTD_TIMEOUT_S) as stream:
                yield ArchiveReader(stream, pool)
        else:
            with path.open("rb") as file:
                yield ArchiveReader(file, pool)


def archive_difference(reader: ArchiveReader, records: Sequence[FileRecord], into: Path | None = None) -> str:
    """Read every entry against the manifest's list; words for the first that is wrong, "" when all are right.

    With `into`, an empty directory, each file is written there as it is read; what is wrong is written too, and the
    caller removes it.
    """
    read: dict[str, FileRecord] = {}
    expected = {record.path: record for record in records}
    for record in records:
        member = reader.next()
        if member is None:
            return f"{record.path} is missing"
        if member.name != record.path:
            return _unexpected(member.name, record.path, expected, read)
        words = _entry_words(reader, member, record, read, into)
        if words:
            return words
        read[record.path] = record
    following = reader.next()
    if following is not None:
        return _unexpected(following.name, "", expected, read)
    reader.end()
    return ""


def _entry_words(
    reader: ArchiveReader, member: Member, record: FileRecord, read: dict[str, FileRecord], into: Path | None
) -> str:
    path = None if into is None else into / record.path
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    if member.link:
        earlier = read.get(member.link)
        if earlier is None or (earlier.digest, earlier.size_bytes) != (record.digest, record.size_bytes):
            return f"{record.path} is a link to {member.link!r}, which is another file"
        if into is not None and path is not None:
            os.link(into / member.link, path)
        return ""
    if member.size_bytes != record.size_bytes:
        return f"{record.path} has {member.size_bytes} bytes, the manifest says {record.size_bytes}"
    if path is None:
        found = reader.digest(member)
    else:
        with path.open("xb") as file:
            found = reader.digest(member, file.write)
    return "" if found == record.digest else f"{record.path} has other bytes than were sealed"


def _unexpected(found: str, wanted: str, expected: dict[str, FileRecord], read: dict[str, FileRecord]) -> str:
    if found in read or found in (MANIFEST_NAME, SIGNATURE_NAME):
        return f"{found} is there twice"
    if found in expected:
        return f"{wanted} is missing"
    return f"{found} does not belong there"


def _broken(words: str) -> Failure:
    return Failure(words, _AGAIN, ExitCode.WORK_FAILED)
