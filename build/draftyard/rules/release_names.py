"""Which names a sealed release may hold: each stays inside it, once, on any file system."""

import re

from draftyard.nouns.artifact import FileRecord
from draftyard.nouns.errors import Problem
from draftyard.nouns.sealed_release import MANIFEST_NAME, SIGNATURE_NAME, Release

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_PART_BYTES = 255
_HINT = "take the release from its source again"


def unsafe_reason(name: str) -> str:
    """Why a name must not be used as a path below a directory; empty when it may."""
    parts = name.split("/")
    if name.startswith("/"):
        return "is absolute"
    if ".." in parts:
        return "leads out of the release"
    if "" in parts or "." in parts:
        return "is not in its shortest form"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name) or "\\" in name:
        return "holds a control character or a backslash"
    if any(len(part.encode("utf-8", "surrogatepass")) > _LONGEST_PART_BYTES for part in parts):
        return "is longer than a file system allows"
    return ""


def listing_problems(release: Release) -> list[Problem]:
    """What is wrong with the list of files, in its order; empty when every name may be opened."""
    problems: list[Problem] = []
    seen: set[str] = set()
    for record in release.files:
        reason = _record_reason(record, seen)
        if reason:
            problems.append(Problem(f"the manifest names {record.path!r}, which {reason}", _HINT))
        seen.add(record.path)
    for name in sorted(seen):
        folders = ["/".join(name.split("/")[:depth]) for depth in range(1, name.count("/") + 1)]
        if seen & set(folders):
            problems.append(Problem(f"the manifest has {name!r} below a file", _HINT))
    if not problems and [record.path for record in release.files] != sorted(seen):
        problems.append(Problem("the manifest is not sorted by path", _HINT))
    places = {one.repository for one in release.variants}
    places |= {engine.place for one in release.variants for engine in one.engines}
    for place in sorted(places):
        if not any(name.startswith(f"{place}/") for name in seen):
            problems.append(Problem(f"the manifest lists no file of {place!r}", _HINT))
    return problems


def _record_reason(record: FileRecord, seen: set[str]) -> str:
    if record.path in seen:
        return "stands there twice"
    if record.path in (MANIFEST_NAME, SIGNATURE_NAME):
        return "cannot list itself"
    if record.size_bytes < 0 or not _DIGEST.fullmatch(record.digest):
        return "has no proper size and digest"
    return unsafe_reason(record.path)
