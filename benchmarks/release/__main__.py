"""Seals and checks a release of random bytes, and copies them: python -m benchmarks.release [GIB] [--folder DIR]."""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.fakes.sealed_release import PLAN, manifest_of, write

from draftyard.doors.release_files import sealed_file, sealed_text
from draftyard.doors.shell import run
from draftyard.verbs.verify_release import Trust, verify_release

ANYONE = Trust(Path("/nowhere/allowed"), unsigned=True)
PIECE = 64 << 20


def main() -> None:
    """Print bytes per second of each way, in turn, the median of three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gib", nargs="?", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary directory)")
    arguments = parser.parse_args()
    size = int(arguments.gib * (1 << 30))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        ways = lay_out(Path(folder), size)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(3):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - began)
    copy = statistics.median(seconds["cp"])
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name:24} {size / median / 1e9:6.2f} GB/s  {copy / median:5.2f} of cp")


def lay_out(root: Path, size: int) -> dict[str, Callable[[], object]]:
    """A release of two ranks and its archive; returns what is to be timed, in turn."""
    ranks = [root / f"rank{rank}.engine" for rank in range(2)]
    for rank in ranks:
        with rank.open("wb") as file:
            for _ in range(0, size // 2, PIECE):
                file.write(os.urandom(min(PIECE, size // 2)))
    files = [sealed_text(f"{PLAN.place}/config.json", "{}"), sealed_text("recipe.yaml", "")]
    files += [sealed_file(f"{PLAN.place}/{rank.name}", rank) for rank in ranks]
    files.sort(key=lambda one: one.record.path)
    document = manifest_of(tuple(files)).model_dump(mode="json")
    write(root / "release", document, tuple(files))
    write(root / "release.tar", document, tuple(files))

    def sealed_again() -> None:
        shutil.rmtree(root / "again", ignore_errors=True)
        write(root / "again", document, tuple(files))

    def copied() -> None:
        # To new files, as sealing does: writing over old ones takes no new pages.
        for rank in ranks:
            (root / f"{rank.name}.copy").unlink(missing_ok=True)
            run(["cp", str(rank), str(root / f"{rank.name}.copy")], timeout_s=600)

    def archived_again() -> None:
        (root / "again.tar").unlink(missing_ok=True)
        write(root / "again.tar", document, tuple(files))

    ways: dict[str, Callable[[], object]] = {
        "cp": copied,
        "verify-release DIR": lambda: verify_release(root / "release", ANYONE),
        "verify-release ARCHIVE": lambda: verify_release(root / "release.tar", ANYONE),
        "seal DIR": sealed_again,
        "seal ARCHIVE": archived_again,
    }
    if shutil.which("b3sum"):
        ways["b3sum"] = lambda: run(["b3sum", *map(str, ranks)], timeout_s=600)
    return ways


if __name__ == "__main__":
    main()
