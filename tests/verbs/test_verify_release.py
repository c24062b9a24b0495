"""A release that is not what was sealed is refused before anything of it is used, and the first bad file is named."""

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.sealed_release import PLAN, files_of, make_key, manifest_of, seal, write

from draftyard.cli import main
from draftyard.doors.release_files import SealedFile
from draftyard.nouns.artifact import FileRecord
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.verbs.verify_release import Trust, unpack_release, verify_release

ANYONE = Trust(Path("/nowhere/allowed"), unsigned=True)
RANK = f"{PLAN.place}/rank1.engine"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return seal(tmp_path, "release")


def refusal(path: Path, trust: Trust = ANYONE) -> str:
    with pytest.raises(Failure) as caught:
        verify_release(path, trust)
    assert caught.value.code is ExitCode.WORK_FAILED
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize("name", ["release", "release.tar", "release.tar.zst"])
def test_a_sealed_release_is_right(tmp_path, name):
    verified = verify_release(seal(tmp_path, name), ANYONE)
    assert (verified.release.name, verified.signer, len(verified.release.files)) == ("tiny", "", 6)


def test_a_directory_holds_no_second_copy(tmp_path, release):
    assert (release / RANK).samefile(tmp_path / "parts" / "rank.engine")


def test_an_archive_holds_the_same_bytes_once(tmp_path):
    archive = seal(tmp_path, "release.tar")
    assert archive.stat().st_size < 1.2 * (release_bytes := (tmp_path / "parts/rank.engine").stat().st_size)
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    assert (tmp_path / "unpacked" / RANK).stat().st_size == release_bytes
    assert verify_release(tmp_path / "unpacked", ANYONE)


def test_unpacking_checks_what_it_writes(tmp_path):
    archive = seal(tmp_path, "release.tar.zst")
    (tmp_path / "into").mkdir()
    unpack_release(archive, ANYONE, tmp_path / "into")
    assert (tmp_path / "into" / RANK).samefile(tmp_path / "into" / PLAN.place / "rank0.engine")
    assert verify_release(tmp_path / "into", ANYONE)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.unlink()  # the store's own file has the same bytes and stays as it is
    path.write_bytes(data)


@pytest.mark.parametrize("offset", [0, 8 << 20, -1])
def test_a_flipped_byte_is_found_anywhere(release, offset):
    flip(release / RANK, offset)
    assert refusal(release) == f"{RANK} has other bytes than were sealed"


def test_the_first_bad_file_is_named(release):
    flip(release / RANK, 5)
    flip(release / "recipe.yaml", 0)
    assert refusal(release).startswith("recipe.yaml")


def add(release: Path) -> None:
    (release / "wheels").mkdir()
    (release / "wheels" / "evil.whl").write_bytes(b"x")


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda root: (root / RANK).unlink(), f"{RANK} is missing"),
    "extra": (add, "wheels/evil.whl does not belong there"),
    "truncated": (lambda root: shorten(root / RANK), f"{RANK} has 100 bytes, the manifest says 8448000"),
    "link": (lambda root: link(root / RANK), f"{RANK} is a link"),
    "folder link": (lambda root: link(root / "more"), "more is a link and does not belong there"),
    "pipe": (lambda root: os.mkfifo(root / "pipe"), "pipe is no plain file and does not belong"),
    "no manifest": (lambda root: (root / "release.json").write_text("[]"), "release.json is no manifest"),
    "broken manifest": (lambda root: (root / "release.json").write_text('{"release_format": 1}'), "is broken: name"),
}


def shorten(path: Path) -> None:
    data = path.read_bytes()[:100]
    path.unlink()
    path.write_bytes(data)


def link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/etc")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_directory_is_refused(release, fault):
    change, words = FAULTS[fault]
    change(release)
    assert words in refusal(release)


def record(path: str, size_bytes: int = 1, digest: str = "0" * 64) -> FileRecord:
    return FileRecord(path=path, size_bytes=size_bytes, digest=digest)


NAMES = {
    "../x": "leads out of the release",
    "a/../../x": "leads out of the release",
    "/etc/passwd": "is absolute",
    "a//b": "is not in its shortest form",
    "./a": "is not in its shortest form",
    "": "is not in its shortest form",
    "a\nb": "holds a control character",
    "a\\b": "holds a control character or a backslash",
    "release.json": "cannot list itself",
    "x" * 300: "is longer than a file system allows",
}


@pytest.mark.parametrize("form", ["release", "release.tar"])
@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere_are_refused_before_anything_is_opened(tmp_path, name, form):
    bad = seal_with(tmp_path, form, record(name))
    assert NAMES[name] in refusal(bad)


def seal_with(tmp_path: Path, form: str, *more: FileRecord) -> Path:
    files = tuple(sorted(files_of(tmp_path / "parts"), key=lambda one: one.record.path))
    release = manifest_of(files)
    listed = tuple(sorted((*release.files, *more), key=lambda one: one.path))
    return write(tmp_path / form, release.model_copy(update={"files": listed}).model_dump(mode="json"), files)


def test_a_name_that_stands_there_twice_is_refused(tmp_path):
    assert "stands there twice" in refusal(seal_with(tmp_path, "release", record("recipe.yaml")))


def test_a_file_below_a_file_is_refused(tmp_path):
    assert "below a file" in refusal(seal_with(tmp_path, "release", record("recipe.yaml/x")))


def test_a_digest_or_a_size_that_is_none_is_refused(tmp_path):
    assert "no proper size and digest" in refusal(seal_with(tmp_path, "a", record("x", digest="abc")))
    assert "no proper size and digest" in refusal(seal_with(tmp_path, "b", record("x", size_bytes=-1)))


def test_a_manifest_without_a_variants_files_is_refused(tmp_path):
    files = files_of(tmp_path / "parts")[:1]
    bad = write(tmp_path / "release", manifest_of(files).model_dump(mode="json"), files)
    assert "lists no file of 'repositories/plain'" in refusal(bad)


def test_a_release_of_a_later_format_asks_for_its_own_tool(tmp_path):
    bad = seal(tmp_path, "release", release_format=2)
    assert refusal(bad) == "the release has format 2, this version knows 1"


@pytest.mark.parametrize("form", ["release", "release.tar.zst"])
def test_a_signature_says_who_sealed_it(tmp_path, form):
    key = make_key(tmp_path / "key")
    assert verify_release(seal(tmp_path, form, key), Trust(tmp_path / "key.allowed")).signer == "builder"


def test_an_unsigned_release_is_refused_unless_it_is_allowed(tmp_path, release):
    make_key(tmp_path / "key")
    assert refusal(release, Trust(tmp_path / "key.allowed")) == "the release is not signed"
    assert verify_release(release, Trust(tmp_path / "key.allowed", unsigned=True)).signer == ""


def test_a_signature_of_another_manifest_is_refused(tmp_path):
    signed = seal(tmp_path, "release", make_key(tmp_path / "key"))
    document = json.loads((signed / "release.json").read_text())
    (signed / "release.json").write_text(json.dumps({**document, "name": "other"}))
    trust = Trust(tmp_path / "key.allowed")
    assert refusal(signed, trust) == "the signature is not one of these bytes"
    (signed / "release.json.sig").write_text("nonsense")
    assert refusal(signed, trust) == "the signature is not one of these bytes"


def test_a_signature_by_another_key_is_refused(tmp_path):
    signed = seal(tmp_path, "release", make_key(tmp_path / "key"))
    make_key(tmp_path / "other")
    assert "is by a key that" in refusal(signed, Trust(tmp_path / "other.allowed"))
    assert "is by a key that" in refusal(signed, Trust(tmp_path / "other.allowed", unsigned=True))


def test_a_key_for_another_purpose_or_another_time_is_refused(tmp_path):
    signed = seal(tmp_path, "release", make_key(tmp_path / "key"))
    allowed = tmp_path / "key.allowed"
    text = allowed.read_text()
    allowed.write_text(text.replace('namespaces="draftyard"', 'namespaces="git"'))
    assert "does not allow" in refusal(signed, Trust(allowed))
    allowed.write_text(text.replace("namespaces=", 'valid-before="20200101",namespaces='))
    assert "does not allow" in refusal(signed, Trust(allowed))


def test_a_signature_that_was_taken_away_is_missed(tmp_path):
    signed = seal(tmp_path, "release", make_key(tmp_path / "key"))
    (signed / "release.json.sig").unlink()
    assert "release.json.sig is missing" in refusal(signed)


def test_who_allows_unsigned_releases_still_needs_signers_for_signed_ones(tmp_path):
    signed = seal(tmp_path, "release", make_key(tmp_path / "key"))
    assert verify_release(signed, ANYONE).signer == ""
    with pytest.raises(Failure, match="there is no file of allowed signers") as caught:
        verify_release(signed, Trust(tmp_path / "none"))
    assert caught.value.code is ExitCode.ENVIRONMENT


def test_a_key_that_others_may_read_does_not_sign(tmp_path):
    key = make_key(tmp_path / "key")
    key.chmod(0o644)
    with pytest.raises(Failure, match="does not sign") as caught:
        seal(tmp_path, "release", key)
    assert "chmod 600" in caught.value.hint
    assert not (tmp_path / "release").exists()


# Archives, entry by entry


def repacked(archive: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], object]) -> Path:
    """The archive with its entries changed, written as any tar program would."""
    with tarfile.open(archive) as tar:
        entries = [(one, tar.extractfile(one).read() if one.isreg() else b"") for one in tar.getmembers()]
    change(entries)
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in entries:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b"x" if kind == tarfile.REGTYPE else b""


def index(entries: list[tuple[tarfile.TarInfo, bytes]], name: str) -> int:
    return [info.name for info, _ in entries].index(name)


def drop(name: str) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], object]:
    return lambda entries: entries.pop(index(entries, name))


def relink(target: str) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    return lambda entries: setattr(entries[index(entries, RANK)][0], "linkname", target)


ARCHIVE_FAULTS = {
    "nothing": (lambda entries: None, ""),
    "missing": (drop(RANK), f"{RANK} is missing"),
    "missing last": (drop(f"{PLAN.place}/rank0.engine"), f"{PLAN.place}/rank0.engine is missing"),
    "extra": (lambda entries: entries.insert(3, entry("evil")), "evil does not belong there"),
    "extra at the end": (lambda entries: entries.append(entry("evil")), "evil does not belong there"),
    "out of it": (lambda entries: entries.append(entry("../evil")), "../evil does not belong there"),
    "absolute": (lambda entries: entries.append(entry("/etc/evil")), "/etc/evil does not belong there"),
    "twice": (lambda entries: entries.append(entry("recipe.yaml")), "recipe.yaml is there twice"),
    "second manifest": (lambda entries: entries.append(entry("release.json")), "release.json is there twice"),
    "symlink": (lambda entries: entries.append(entry("evil", tarfile.SYMTYPE, "/etc")), "evil is a link"),
    "folder": (lambda entries: entries.append(entry("evil", tarfile.DIRTYPE)), "evil is a folder"),
    "device": (lambda entries: entries.append(entry("evil", tarfile.CHRTYPE)), "evil is no plain file"),
    "link elsewhere": (relink("/etc/shadow"), "is a link to '/etc/shadow', which is another file"),
    "link to other bytes": (relink("recipe.yaml"), "which is another file"),
    "order": (lambda entries: entries.reverse(), "does not begin with release.json"),
}


@pytest.mark.parametrize("fault", ARCHIVE_FAULTS)
def test_a_changed_archive_is_refused(tmp_path, fault):
    change, words = ARCHIVE_FAULTS[fault]
    archive = repacked(seal(tmp_path, "release.tar"), change)
    if words:
        assert words in refusal(archive)
    else:
        assert verify_release(archive, ANYONE)


def test_a_flipped_byte_in_an_archive_is_found(tmp_path):
    archive = seal(tmp_path, "release.tar")
    flip(archive, 9 << 20 if archive.stat().st_size > 9 << 20 else archive.stat().st_size // 2)
    assert "has other bytes than were sealed" in refusal(archive)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.998])
def test_a_cut_archive_is_refused(tmp_path, share):
    archive = seal(tmp_path, "release.tar")
    os.truncate(archive, int(archive.stat().st_size * share))
    assert "the archive ends within" in refusal(archive)


def test_a_cut_or_damaged_compressed_archive_is_refused(tmp_path):
    archive = seal(tmp_path, "release.tar.zst")
    shutil.copy(archive, tmp_path / "cut.tar.zst")
    os.truncate(tmp_path / "cut.tar.zst", archive.stat().st_size // 2)
    refusal(tmp_path / "cut.tar.zst")
    flip(archive, archive.stat().st_size // 2)
    refusal(archive)


def test_bytes_behind_the_end_are_refused(tmp_path):
    archive = seal(tmp_path, "release.tar")
    with archive.open("ab") as file:
        file.write(b"more")
    assert refusal(archive) == "the archive goes on behind its end"


def test_no_other_name_is_an_archive(tmp_path):
    (tmp_path / "release.zip").write_bytes(b"")
    with pytest.raises(Failure, match=r"release\.zip is no archive of a release"):
        verify_release(tmp_path / "release.zip", ANYONE)


@pytest.mark.parametrize("form", ["release", "release.tar"])
def test_bytes_that_change_while_they_are_sealed_are_noticed(tmp_path, form):
    files = files_of(tmp_path / "parts")
    wrong = tuple(
        SealedFile(one.record.model_copy(update={"digest": "1" * 64}), one.source) if one.record.path == RANK else one
        for one in sorted(files, key=lambda one: one.record.path)
    )
    with pytest.raises(Failure, match="has other bytes than were sealed"):
        write(tmp_path / form, manifest_of(wrong).model_dump(mode="json"), wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts"]


def test_the_command_tells_in_exit_codes(tmp_path, release, capsys):
    assert main(["verify-release", str(release), "--allow-unsigned", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 6
    assert main(["verify-release", str(release), "--allow-unsigned"]) == 0
    assert "NOT SIGNED" in capsys.readouterr().out
    (release / "recipe.yaml").unlink()
    assert main(["verify-release", str(release), "--allow-unsigned"]) == 1
    assert "error: recipe.yaml is missing\nhint: take the release" in capsys.readouterr().err
