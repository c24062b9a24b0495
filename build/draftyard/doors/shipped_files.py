"""Finds the files that travel with the package: in a checkout beside it, in an installed wheel inside it."""

import hashlib
import json
import shutil
from pathlib import Path

from draftyard.nouns.errors import ExitCode, Failure

PACKAGE_DIRECTORY = Path(__file__).resolve().parents[1]
MANIFEST = "guests.json"
# The wheel holds triton_repo/ inside the package, a checkout beside build/.
ROOTS = (PACKAGE_DIRECTORY, PACKAGE_DIRECTORY.parents[1])


def guests_directory() -> Path:
    """The Python models that run inside the server; Failure when the installation is broken."""
    return _shipped("models")


def backends_directory() -> Path:
    """The server backends of this project; Failure when the installation is broken."""
    return _shipped("backends")


def guests_digest() -> str:
    """SHA-256 over paths and contents of the guests, as 64 hexadecimal digits; what the server wrote is left out."""
    directory = guests_directory()
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*"), key=lambda path: path.relative_to(directory).as_posix()):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(directory).as_posix()
            total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def copy_guest(name: str, version_directory: Path) -> None:
    """Copy the Python files of a guest into its version folder, with the shared ones that the manifest lists.

    Failure when the manifest names a file that is not there.
    """
    source = guests_directory()
    listed = json.loads((source / MANIFEST).read_text(encoding="utf-8"))[name]
    own = sorted(path for path in (source / name / "1").iterdir() if path.is_file())
    shared = [source / "shared" / file for file in listed]
    missing = [path.name for path in shared if not path.is_file()]
    if missing or not own:
        raise Failure(
            f"the guest {name} lacks {', '.join(missing) or 'its model'}",
            "install draftyard again",
            ExitCode.ENVIRONMENT,
        )
    version_directory.mkdir(parents=True)
    for path in (*own, *shared):
        shutil.copyfile(path, version_directory / path.name)


def _shipped(folder: str) -> Path:
    for root in ROOTS:
        directory = root / "triton_repo" / folder
        if directory.is_dir():
            return directory
    raise Failure(
        f"triton_repo/{folder} is missing from the installation", "install draftyard again", ExitCode.ENVIRONMENT
    )
