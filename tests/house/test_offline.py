"""Commands run without a network, and nothing heavy is loaded for a word of help."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.fakes.loopback_only import LeftTheMachineError
from tests.fakes.tiny_recipe import write_recipe
from tests.house.source_map import ROOT

# An address that is set aside for examples: nobody answers there.
NOWHERE = ("192.0.2.1", 9)


def test_the_guard_refuses_what_leaves_the_machine() -> None:
    with socket.socket() as stream, pytest.raises(LeftTheMachineError):
        stream.connect(NOWHERE)
    with socket.socket(type=socket.SOCK_DGRAM) as datagram, pytest.raises(LeftTheMachineError):
        datagram.sendto(b"x", NOWHERE)
    with pytest.raises(LeftTheMachineError):
        socket.getaddrinfo("host.invalid", 80)


def test_the_guard_allows_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answers: list[bytes] = []

        def ask() -> None:
            with socket.create_connection(listener.getsockname(), timeout=5) as stream:
                answers.append(stream.recv(2))

        asking = threading.Thread(target=ask)
        asking.start()
        stream, _ = listener.accept()
        with stream:
            stream.sendall(b"ok")
        asking.join(5)
    assert answers == [b"ok"]


def behind_the_guard(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tests.fakes.loopback_only", module, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "build"), str(ROOT))), "NO_COLOR": "1"}
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)


def test_a_command_that_connects_would_be_caught(tmp_path: Path) -> None:
    module = tmp_path / "connects.py"
    module.write_text(f"import socket\nsocket.create_connection({NOWHERE!r}, timeout=5)\n")
    words = "import sys; sys.path.insert(0, {!r}); from tests.fakes import loopback_only; loopback_only.install(); {}"
    program = words.format(str(tmp_path), "import connects")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "LeftTheMachineError" in done.stderr


def test_commands_run_offline(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    done = behind_the_guard("draftyard", "--help")
    assert (done.returncode, "usage: draftyard" in done.stdout) == (0, True), done.stderr
    done = behind_the_guard("draftyard", "schema")
    assert "target" in json.loads(done.stdout)["properties"], done.stderr
    done = behind_the_guard("draftyard", "inspect", str(tmp_path / "target"), "--format", "json")
    assert json.loads(done.stdout)["family"] == "llama", done.stderr
    done = behind_the_guard("draftyard", "plan", str(recipe), "--out", str(tmp_path / "out"), "--format", "json")
    assert json.loads(done.stdout)["recipe"] == "tiny", done.stderr


def test_help_is_quick_to_load() -> None:
    """The command and its parser load no torch, no server client, no numpy; a verb is imported when it is chosen."""
    program = (
        "import sys, draftyard.cli\n"
        "try:\n    draftyard.cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'tritonclient', 'grpc', 'numpy', 'transformers') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build")}
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
