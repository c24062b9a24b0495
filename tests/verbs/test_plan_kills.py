"""Engines of the tensorrt lane under kills: of the tool, of the builder, of the disk; what is there is always whole."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.builder_host import host_environment, write_programs
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.fakes.tiny_recipe import TEXT

from draftyard.doors.store import Store, StoreRoots
from draftyard.verbs.drawing import draw_recipe

PACKAGE = Path(__file__).parents[2] / "build"
RECIPE = (
    TEXT.replace("[reference]", "[tensorrt]")
    .replace("[cpu]", "[h100_sxm, h200_sxm]")
    .replace("[fp32]", "[fp16]")
    .replace("  - {kind: ngram, max_draft_len: 3}\n", "")
)


def lay_out(root: Path) -> Path:
    """A recipe of two products with a draft, and the programs of a host that has both."""
    target, draft = config_of(head_dim=32), config_of(head_dim=32, num_hidden_layers=1)
    write_model(root / "target", target, random_weights(target))
    write_model(root / "draft", draft, random_weights(draft, 1))
    (root / "recipe.yaml").write_text(RECIPE)
    write_programs(root / "bin")
    return root / "recipe.yaml"


class Attempt:
    """One run of the command, with a fault that strikes after a while."""

    def __init__(self, root: Path, faults: str = "", file_limit: int | None = None) -> None:
        argv = [sys.executable, "-m", "draftyard", "build", str(root / "recipe.yaml"), "--out", str(root / "out")]
        environment = host_environment(root / "bin", ("NVIDIA H100 80GB HBM3", "NVIDIA H200"), faults)
        self.process = subprocess.Popen(
            [*argv, "--builder-python", "builder-python", "--workers", "2"],
            env={**os.environ, **environment, "PYTHONPATH": str(PACKAGE)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=None
            if file_limit is None
            else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, -1)),
            text=True,
        )

    def wait_for_work(self) -> None:
        """Until the first step begins, or the command ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("making"):
                return

    def builders(self) -> list[int]:
        """Pids of builders that this attempt runs."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"trtllm_build.py" in words and self._mine(entry):
                found.append(int(entry.name))
        return found

    def _mine(self, entry: Path) -> bool:
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return False
        return parent == self.process.pid

    def end(self) -> int:
        """Wait; the exit code."""
        self.process.communicate(timeout=120)
        return self.process.returncode


def kill_tool(root: Path, dice: random.Random) -> int:
    attempt = Attempt(root)
    attempt.wait_for_work()
    time.sleep(dice.uniform(0, 1.2))
    attempt.process.send_signal(signal.SIGKILL)
    return attempt.end()


def kill_builder(root: Path, dice: random.Random) -> int:
    attempt = Attempt(root, "slow")
    until = time.monotonic() + 20
    while attempt.process.poll() is None and time.monotonic() < until:
        builders = attempt.builders()
        if builders:
            os.kill(dice.choice(builders), signal.SIGKILL)
            break
        time.sleep(0.05)
    return attempt.end()


def fill_disk(root: Path, dice: random.Random) -> int:
    if dice.random() < 0.5:
        return Attempt(root, "disk_full").end()
    return Attempt(root, file_limit=dice.randrange(2_000, 60_000)).end()


STRIKES: tuple[Callable[[Path, random.Random], int], ...] = (kill_tool, kill_builder, fill_disk)


def assert_whole(recipe: Path, out: Path) -> int:
    """Every artefact that has a receipt is what the receipt says; returns how many there are."""
    store, found = Store(StoreRoots(out), {}, ()), 0
    for step in draw_recipe(recipe, None).blueprint.steps:
        if step.kind.value != "repository" and store.receipt(step) is not None:
            assert store.check(step) == []
            found += 1
    return found


def endure(root: Path, strikes: int, seed: int) -> None:
    """Strike again and again; whenever all is built, begin anew. At the end the build completes."""
    recipe, dice, codes = lay_out(root), random.Random(seed), []
    for number in range(strikes):
        codes.append(STRIKES[number % len(STRIKES)](root, dice))
        if assert_whole(recipe, root / "out") == 8:
            subprocess.run(["rm", "-r", str(root / "out")], check=True)
    assert all(any(codes[kind :: len(STRIKES)]) for kind in range(len(STRIKES))), codes  # each kind has struck
    assert Attempt(root).end() == 0
    assert assert_whole(recipe, root / "out") == 8
    receipts = list((root / "out").rglob("receipt.json"))
    assert all(json.loads(path.read_text())["files"] for path in receipts)


@pytest.mark.slow
def test_kills_leave_nothing_that_looks_finished(tmp_path: Path) -> None:
    endure(tmp_path, 9, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_two_hundred_kills(tmp_path: Path) -> None:
    endure(tmp_path, 200, seed=2)
