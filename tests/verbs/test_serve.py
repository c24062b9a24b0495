"""Serving lasts until it is told to stop; then nothing is left."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.doors.test_triton import ECHO, echo, make_model

from draftyard.doors.shell import session_members

ROOT = Path(__file__).resolve().parents[2]
CODE = (
    "import sys\n"
    "from pathlib import Path\n"
    "from draftyard.nouns.errors import Failure\n"
    "from draftyard.verbs.serve import serve\n"
    "try:\n"
    "    sys.exit(serve(Path(sys.argv[1]), log_path=Path(sys.argv[2])))\n"
    "except Failure as failure:\n"
    "    sys.exit(f'{failure.message}; {failure.hint}')\n"
)
pytestmark = pytest.mark.server


class Serving:
    """A process that serves, and what it said."""

    def __init__(self, tmp_path: Path) -> None:
        repository = make_model(tmp_path / "repository", "echo", ECHO)
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(repository), str(tmp_path / "log.txt")],
            env={**os.environ, "PYTHONPATH": str(ROOT / "build")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self) -> dict[str, str]:
        """The five announced lines, by their first word."""
        found = [self.process.stdout.readline().split() for _ in range(5)]
        return {words[0]: words[1] for words in found}

    def server_pid(self) -> int:
        """The server is the only child."""
        task = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return int(Path(task).read_text().split()[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_serving_with_130(tmp_path, number):
    serving = Serving(tmp_path)
    try:
        lines = serving.lines()
        assert lines["entry"] == "tensorrt_llm_bls"
        url = re.fullmatch(r"http://(127\.0\.0\.1:\d+)", lines["http"])[1]
        assert echo(url, "echo", 3) == 3
        server = serving.server_pid()
        serving.process.send_signal(number)
        errors = serving.process.communicate(timeout=20)[1]
        assert serving.process.returncode == 130
        assert errors == "stopped\n"
        assert not Path(f"/proc/{server}").exists()
        assert session_members(server) == ()
    finally:
        serving.process.kill()
        serving.process.communicate()
    assert not list(Path("/dev/shm").glob(f"draftyard-{serving.process.pid}-*"))


def test_a_server_that_dies_is_a_failure(tmp_path):
    serving = Serving(tmp_path)
    try:
        serving.lines()
        os.kill(serving.server_pid(), signal.SIGKILL)
        began = time.monotonic()
        errors = serving.process.communicate(timeout=20)[1]
        assert time.monotonic() - began < 15
        assert serving.process.returncode == 1
        assert "the server ended by itself with exit code -9; read " in errors
    finally:
        serving.process.kill()
        serving.process.communicate()
