"""How much a build costs that finds everything there: processor time against `make -q` on a like number of files."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.appliance import lay_out
from tests.fakes.builder_host import host_environment, write_programs

GPUS = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
GOAL_S = 0.4


def main() -> int:
    """Rehearse a matrix, then measure builds with nothing to do; prints a table and writes JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="llama-3.3-70b")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        recipe = lay_out(root) / f"{arguments.recipe}.yaml"
        environment = {**os.environ, **host_environment(write_programs(root / "bin"), GPUS)}
        argv = [sys.executable, "-m", "draftyard", "build", str(recipe), "--rehearse", "--out", str(root)]
        argv += ["--builder-python", "builder-python"]
        _run(argv, environment)
        files = [path for path in (root / "rehearsal").rglob("*") if path.is_file()]
        ours = [_run(argv, environment) for _ in range(arguments.repeats)]
        make = [_run(_makefile(root, len(files)), environment) for _ in range(arguments.repeats)]
        bare = [_run([sys.executable, "-c", "import pydantic, yaml"], environment) for _ in range(arguments.repeats)]
    result = {
        "files": len(files),
        "build_s": round(min(ours), 3),
        "build_median_s": round(statistics.median(ours), 3),
        "make_q_s": round(min(make), 3),
        "python_with_pydantic_s": round(min(bare), 3),
        "goal_s": GOAL_S,
        "load": os.getloadavg()[0],
    }
    print("\n".join(f"{name:24}{value}" for name, value in result.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if min(ours) <= GOAL_S else 1


def _run(argv: Sequence[str], environment: dict[str, str]) -> float:
    """Seconds of processor time that a command and its children took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _makefile(root: Path, count: int) -> list[str]:
    """A makefile with as many targets as there are files, all of them newer than what they are made of."""
    place = root / "make"
    if not place.exists():
        place.mkdir()
        names = [f"file{index}" for index in range(count)]
        (place / "source").write_text("x")
        for name in names:
            (place / name).write_text("x")
        rules = "\n".join(f"{name}: source ; touch {name}" for name in names)
        (place / "Makefile").write_text(f"all: {' '.join(names)}\n{rules}\n")
    return ["make", "-q", "-C", str(place)]


if __name__ == "__main__":
    sys.exit(main())
