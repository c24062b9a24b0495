"""Checks a sealed release, a directory or an archive: who signed it, and every byte in it, before anything is used."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.release_archive import archive_difference, open_archive
from draftyard.doors.release_files import first_difference, parse_release, read_manifest, tree_problems, write_manifest
from draftyard.doors.signatures import verify
from draftyard.nouns.errors import ExitCode, Failure, raise_problems
from draftyard.nouns.sealed_release import SIGNATURE_NAME, SIGNATURE_NAMESPACE, Release
from draftyard.rules.release_names import listing_problems

DEFAULT_SIGNERS = Path("/etc/draftyard/allowed_signers")


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose signature counts: a file of allowed signers, never one out of the release. `unsigned`: none is needed."""

    allowed_signers: Path = DEFAULT_SIGNERS
    unsigned: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """A release whose every byte was read and found right; `signer` is empty when it is unsigned."""

    release: Release
    signer: str
    read_bytes: int


def verify_release(path: Path, trust: Trust) -> Verified:
    """Check the signature, then names and sizes, then every byte.

    Failure (exit code 1) names the first file that is missing, too many, a link, of another size or of other bytes;
    before any file is opened, names in the manifest that lead out of the release are refused.
    """
    if not path.is_dir():
        return unpack_release(path, trust, None)
    release, signer = _trusted(*read_manifest(path), trust)
    raise_problems(tree_problems(path, release.files), ExitCode.WORK_FAILED)
    problem = first_difference(path, release.files)
    raise_problems([] if problem is None else [problem], ExitCode.WORK_FAILED)
    return Verified(release, signer, _size(release))


def unpack_release(archive: Path, trust: Trust, into: Path | None) -> Verified:
    """Check an archive in one pass; with `into`, an empty directory, each file is written there as it is read.

    What was written before a Failure stays there, for the caller to remove.
    """
    with open_archive(archive) as reader:
        manifest, signature = reader.manifest()
        release, signer = _trusted(manifest, signature, trust)
        words = archive_difference(reader, release.files, into)
        if words:
            raise Failure(words, "take the release from its source again", ExitCode.WORK_FAILED)
    if into is not None:
        write_manifest(into, manifest, signature)
    return Verified(release, signer, _size(release))


def _trusted(manifest: bytes, signature: bytes | None, trust: Trust) -> tuple[Release, str]:
    """The manifest and who signed it; nothing in it is believed before its signature was checked."""
    signer = ""
    # Whoever accepts unsigned releases may know no signers; a file of them is always asked.
    if signature is not None and (trust.allowed_signers.is_file() or not trust.unsigned):
        signer = verify(manifest, signature, trust.allowed_signers, SIGNATURE_NAMESPACE)
    release = parse_release(manifest)
    if signature is None and release.signed:
        raise Failure(
            f"{SIGNATURE_NAME} is missing, and the release says that it is signed",
            "take the release from its source again",
            ExitCode.WORK_FAILED,
        )
    if signature is None and not trust.unsigned:
        hint = "seal it with --key, or accept it as it is with --allow-unsigned"
        raise Failure("the release is not signed", hint, ExitCode.WORK_FAILED)
    raise_problems(listing_problems(release), ExitCode.WORK_FAILED)
    return release, signer


def _size(release: Release) -> int:
    return sum(record.size_bytes for record in release.files)
