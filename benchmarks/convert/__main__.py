"""Prints and writes the speed and peak memory of converting large checkpoints, beside a plain copy and transformers.

Run from the repository with `PYTHONPATH=build:. python -m benchmarks.convert [--sizes 8,16] [--directory DIR]`. Each
size needs twice its bytes on the disk and is removed before the next. Every arm starts with the source out of the page
cache and ends with its output on the disk. Random weights; a shared machine drifts, so the arms take turns.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.convert.checkpoints import write_checkpoint
from draftyard.verbs.inspect import inspect

GIB = 1 << 30
# What conversion is held to.
LEAST_OF_COPY, LEAST_OF_TRANSFORMERS, SPARE_BYTES = 0.6, 3.0, GIB


def forget(directory: Path) -> None:
    """Take the files out of the page cache, after they are on the disk."""
    for path in sorted(directory.glob("*.safetensors")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def run_arm(arm: str, source: Path, work: Path, tp_size: int, limit_s: float) -> dict[str, float]:
    """Seconds and peak bytes of one arm; its output is removed."""
    forget(source)
    target = work / "target"
    argv = [sys.executable, "-m", "benchmarks.convert.arms", arm, str(source), str(target), str(work / "cache")]
    try:
        with subprocess.Popen([*argv, str(tp_size)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                out, _ = process.communicate(timeout=limit_s)
            finally:
                process.kill()
        if process.returncode:
            raise RuntimeError(f"the arm {arm} ended with {process.returncode}")
        measured: dict[str, float] = json.loads(out.decode().splitlines()[-1])
        return measured
    finally:
        if target.exists():
            forget(target)
            shutil.rmtree(target)


def measure(size_gb: float, work: Path, options: argparse.Namespace) -> dict[str, object]:
    """All arms for one size: medians over rounds; transformers once, and only up to the size it is asked for."""
    source = work / "source"
    size_bytes = write_checkpoint(source, int(size_gb * 1e9))
    began = time.perf_counter()
    found = inspect(source, work / "cache")
    inspect_s = time.perf_counter() - began
    arms: dict[str, list[dict[str, float]]] = {}
    for turn in range(options.rounds):
        names = ["copy", "draftyard"]
        if turn == 0 and size_gb <= options.transformers_up_to:
            names.append("transformers")
        for name in names:
            arms.setdefault(name, []).append(run_arm(name, source, work, options.tp_size, options.limit_s))
            print(f"{size_gb:g} GB {name}: {arms[name][-1]}", file=sys.stderr, flush=True)
    shutil.rmtree(source)
    seconds = {name: statistics.median(one["seconds"] for one in rounds) for name, rounds in arms.items()}
    largest_bytes = max(tensor.size_bytes for tensor in found.tensors)
    peak_bytes = max(one["peak_rss_bytes"] for one in arms["draftyard"])
    return {
        "size_bytes": size_bytes,
        "largest_tensor_bytes": largest_bytes,
        "inspect_and_hash_s": inspect_s,
        "arms": arms,
        "gb_per_s": {name: size_bytes / 1e9 / value for name, value in seconds.items()},
        "of_copy": seconds["copy"] / seconds["draftyard"],
        "of_transformers": seconds["transformers"] / seconds["draftyard"] if "transformers" in seconds else None,
        "peak_rss_bytes": peak_bytes,
        "peak_allowed_bytes": SPARE_BYTES + 2 * largest_bytes,
    }


def shown(size: dict[str, object]) -> str:
    """One line for people."""
    speeds = ", ".join(f"{name} {value:.2f} GB/s" for name, value in dict(size["gb_per_s"]).items())  # type: ignore[call-overload]
    ratio = size["of_transformers"]
    against = "" if ratio is None else f", {float(str(ratio)):.1f} times transformers"
    return (
        f"{int(str(size['size_bytes'])) / 1e9:.1f} GB: {speeds}; {float(str(size['of_copy'])):.2f} of a copy{against}; "
        f"peak {int(str(size['peak_rss_bytes'])) / 1e6:.0f} MB"
    )


def goals(sizes: list[dict[str, object]]) -> dict[str, bool]:
    """Which goals hold for every size."""
    ratios = [float(str(size["of_transformers"])) for size in sizes if size["of_transformers"] is not None]
    peaks = [float(str(size["peak_rss_bytes"])) for size in sizes]
    return {
        f"at least {LEAST_OF_COPY} of a copy": all(float(str(size["of_copy"])) >= LEAST_OF_COPY for size in sizes),
        f"at least {LEAST_OF_TRANSFORMERS} times transformers": all(ratio >= LEAST_OF_TRANSFORMERS for ratio in ratios),
        "peak memory at most 1 GiB and two tensors": all(
            float(str(size["peak_rss_bytes"])) <= float(str(size["peak_allowed_bytes"])) for size in sizes
        ),
        "the same peak for all sizes (10 %)": max(peaks) <= 1.1 * min(peaks),
    }


def interrupted(number: int, frame: object) -> None:
    """Whatever ends the benchmark, its files go."""
    raise KeyboardInterrupt


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,16", help="gigabytes of each checkpoint")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the files may lie")
    parser.add_argument("--tp-size", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--transformers-up-to", type=float, default=8.5, help="gigabytes; it holds the model twice")
    parser.add_argument("--limit-s", type=float, default=600.0, help="most seconds of one arm")
    parser.add_argument("--output", type=Path, help="JSON file")
    return parser.parse_args()


def main() -> int:
    """Measure each size in turn; exit code 1 when a goal is missed."""
    options = parsed()
    signal.signal(signal.SIGTERM, interrupted)
    sizes = []
    for size in options.sizes.split(","):
        with tempfile.TemporaryDirectory(dir=options.directory, prefix="draftyard-convert-") as work:
            sizes.append(measure(float(size), Path(work), options))
        print(shown(sizes[-1]), flush=True)
    held = goals(sizes)
    for goal, holds in held.items():
        print(f"{'held' if holds else 'MISSED'}  {goal}")
    report = {
        "machine": platform.platform(),
        "processors": os.cpu_count(),
        "load_average": os.getloadavg(),
        "tp_size": options.tp_size,
        "sizes": sizes,
        "goals": held,
    }
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
