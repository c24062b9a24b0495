"""Soaks a repository on the real server: many streams at once, random cancels and hang-ups, and no token may be wrong.

Run with `PYTHONPATH=build python -m benchmarks.soak REPOSITORY [--minutes 5] [--streams 64] [--output FILE]`; the long
command takes `--minutes 30`. Every answer is compared with the one that plain decoding gave before the load began.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.soak.clients import Entry
from benchmarks.soak.load import Plan, soak
from benchmarks.soak.memory import processes_of
from draftyard.doors.triton import embedded_server


def parser() -> argparse.ArgumentParser:
    """The words of the command line."""
    words = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    words.add_argument("repository", type=Path)
    words.add_argument("--minutes", type=float, default=5.0)
    words.add_argument("--streams", type=int, default=64)
    words.add_argument("--max-tokens", type=int, default=48)
    words.add_argument("--random-seed", type=int, default=0)
    words.add_argument("--output", type=Path)
    return words


def main(argv: list[str]) -> int:
    """Run one soak; 0 when nothing was wrong."""
    arguments = parser().parse_args(argv)
    plan = Plan(arguments.minutes * 60, arguments.streams, arguments.max_tokens, arguments.random_seed)
    with tempfile.TemporaryDirectory(prefix="draftyard-soak-") as scratch:
        log_path = Path(scratch) / "server.log"
        with embedded_server(arguments.repository, log_path=log_path) as server:
            entry = Entry(server.address.http_url, server.address.grpc_url, server.address.metrics_url)
            outcome = asyncio.run(soak(entry, plan, processes_of(server.pid)))
        given_up = log_path.read_text(encoding="utf-8", errors="replace").count("given up")
        print(log_path.read_text(encoding="utf-8", errors="replace")[-2000:] if outcome.problems else "", end="")
    document = {**asdict(outcome), "given_up": given_up}
    text = json.dumps(document, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    return 1 if outcome.problems or given_up else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
