"""What is installed beside this package: distributions, their licences, and wheels that install them elsewhere."""

import hashlib
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from draftyard.doors.shipped_files import ROOTS
from draftyard.nouns.errors import ExitCode, Failure

_LICENCE_FILE = re.compile(r"(licen[cs]es?|copying|notice|authors)([.\-_].*)?$", re.IGNORECASE)
_LARGEST_LICENCE_BYTES = 4 << 20
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?")
_WHEEL = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl")


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution; `spdx` tells that its author gave the licence as an SPDX expression."""

    name: str
    version: str
    licence: str
    spdx: bool
    licence_files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel file, by the name and version in its file name, with the SHA-256 that pip checks."""

    name: str
    version: str
    path: Path
    sha256: str


def normal(name: str) -> str:
    """The one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_distributions(lock: Path | None) -> tuple[Distribution, ...]:
    """What is installed of a lock file, and needs of needs; without one, of what `draftyard` declares. Sorted by name.

    Failure without a lock file where `draftyard` runs from its source and was never installed.
    """
    waiting = ["draftyard"] if lock is None else sorted(locked_versions(lock))
    found: dict[str, Distribution | None] = {}
    while waiting:
        name = normal(waiting.pop())
        if name in found:
            continue
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if lock is None and name == "draftyard":
                raise Failure(
                    "no lock file says what draftyard needs, and it is not installed",
                    "give the lock file with --requirements",
                    ExitCode.ENVIRONMENT,
                ) from None
            found[name] = None  # for another system, or another version of Python
            continue
        found[name] = _distribution(one)
        waiting += list(_requirements(one.requires or []))
    return tuple(one for name, one in sorted(found.items()) if one is not None and name != "draftyard")


def lock_file() -> Path | None:
    """The lock file of a checkout; None in an installation."""
    found = [root / "requirements" / "runtime.txt" for root in ROOTS]
    return next((path for path in found if path.is_file()), None)


def own_licence() -> Path | None:
    """The licence text of this package: beside a checkout, or in the installed distribution."""
    for root in ROOTS:
        if (root / "LICENSE").is_file():
            return root / "LICENSE"
    return None


def licence_files(directory: Path) -> tuple[Path, ...]:
    """Files of a model's directory that look like its licence; sorted."""
    if not directory.is_dir():
        return ()
    return tuple(path for path in sorted(directory.iterdir()) if path.is_file() and _LICENCE_FILE.match(path.name))


def read_wheels(directory: Path) -> tuple[Wheel, ...]:
    """All wheels of a directory, by name; Failure for none, for a broken one, and for two of one distribution."""
    found: dict[str, Wheel] = {}
    for path in sorted(directory.glob("*.whl")):
        match = _WHEEL.fullmatch(path.name)
        if match is None or not zipfile.is_zipfile(path):
            raise Failure(f"{path.name} is no wheel", "fetch it again: pip download or pip wheel")
        name = normal(match["name"])
        if name in found:
            words = f"there are two wheels of {name}: {found[name].path.name} and {path.name}"
            raise Failure(words, "leave the one that the lock file names")
        found[name] = Wheel(name, match["version"], path, _sha256(path))
    if not found:
        raise Failure(f"{directory} holds no wheel", "fill it: pip download -r requirements/runtime.txt -d DIR")
    return tuple(found[name] for name in sorted(found))


def locked_versions(path: Path) -> dict[str, str]:
    """Names and versions of a lock file's lines that hold for every Python; Failure when there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        words = f"the lock file {path} cannot be read: {error.strerror}"
        raise Failure(words, "give it with --requirements", ExitCode.ENVIRONMENT) from None
    found = {}
    for line in lines:
        requirement, _, marker = line.partition("#")[0].partition(";")
        name, equal, version = requirement.strip().partition("==")
        if equal and not marker.strip():
            found[normal(name)] = version.strip()
    return found


def _sha256(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(8 << 20):
            total.update(piece)
    return total.hexdigest()


def _distribution(one: metadata.Distribution) -> Distribution:
    facts = one.metadata
    expression = (facts.get_all("License-Expression") or [None])[0]
    classes = [text.rpartition("::")[2].strip() for text in facts.get_all("Classifier") or [] if "License ::" in text]
    stated = str((facts.get_all("License") or [""])[0]).strip().splitlines()
    licence = expression or ", ".join(classes) or (stated[0] if stated else "")
    return Distribution(facts["Name"], one.version, licence, expression is not None, tuple(_licences(one)))


def _licences(one: metadata.Distribution) -> Iterator[Path]:
    for file in sorted(one.files or [], key=str):
        if ".dist-info" in file.parts[0] and _LICENCE_FILE.match(file.name):
            path = Path(str(one.locate_file(file)))
            if path.is_file() and path.stat().st_size <= _LARGEST_LICENCE_BYTES:
                yield path


def _requirements(lines: list[str]) -> Iterator[str]:
    """Names that are always needed; what only other systems need is not installed here."""
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match and not re.search(r"\bextra\s*==", line):
            yield match[1]
