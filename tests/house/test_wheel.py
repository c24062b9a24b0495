"""What an appliance installs: build the wheel, look inside, import it where no checkout is near."""

import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.house.source_map import BACKENDS, GUESTS, PACKAGE, ROOT, SOURCE_ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("draftyard-*.whl")
    return made


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def sources(root: Path, prefix: str, base: Path) -> dict[str, Path]:
    files = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {f"{prefix}{path.relative_to(base).as_posix()}": path for path in files}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    expected = {
        **sources(PACKAGE, "", SOURCE_ROOT),
        **sources(GUESTS, "draftyard/triton_repo/models/", GUESTS),
        **sources(BACKENDS, "draftyard/triton_repo/backends/", BACKENDS),
        "draftyard/toolchain.yaml": ROOT / "engines" / "toolchain.yaml",
        "draftyard/prediction.json": ROOT / "engines" / "prediction.json",
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert found == set(expected)
        assert [name for name in found if archive.read(name) != expected[name].read_bytes()] == []
    assert len(found) > 100
    assert "draftyard/doors/templates/report.html.j2" in found


def test_files_in_the_wheel_are_files_not_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        kinds = {info.filename: stat.S_IFMT(info.external_attr >> 16) for info in archive.infolist()}
    assert {name: kind for name, kind in kinds.items() if kind not in (0, stat.S_IFREG)} == {}
    assert any((BACKENDS / "tensorrtllm" / Path(name).name).is_symlink() for name in kinds if "tensorrtllm/" in name)


def test_the_wheel_says_how_to_call_it(unpacked: Path) -> None:
    (metadata,) = unpacked.glob("draftyard-*.dist-info")
    assert "draftyard = draftyard.cli:main" in (metadata / "entry_points.txt").read_text()
    text = (metadata / "METADATA").read_text()
    assert "License-Expression: Apache-2.0" in text
    assert (metadata / "licenses" / "LICENSE").is_file()


PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, {unpacked!r})
import draftyard
from draftyard.doors.recipe_files import read_toolchain
from draftyard.doors.shipped_files import backends_directory, copy_guest, guests_digest, guests_directory
from draftyard.doors.report_page import TEMPLATES
root = Path({unpacked!r})
places = [Path(draftyard.__file__), guests_directory(), backends_directory(), TEMPLATES]
assert all(place.is_relative_to(root) for place in places), places
assert (TEMPLATES / "report.html.j2").is_file() and (backends_directory() / "tensorrtllm" / "model.py").is_file()
for name in json.loads((guests_directory() / "guests.json").read_text()):
    copy_guest(name, root / "copied" / name / "1")
    assert (root / "copied" / name / "1" / "model.py").is_file()
print(guests_digest(), read_toolchain().tensorrt_llm)
"""


def test_an_installed_wheel_finds_what_travels_with_it(unpacked: Path) -> None:
    """-I keeps the checkout and the environment out; the digest of the guests is that of the checkout."""
    argv = [sys.executable, "-I", "-c", PROGRAM.format(unpacked=str(unpacked))]
    done = subprocess.run(argv, cwd=unpacked, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    from draftyard.doors.recipe_files import read_toolchain
    from draftyard.doors.shipped_files import guests_digest

    assert done.stdout.split() == [guests_digest(), read_toolchain().tensorrt_llm]
