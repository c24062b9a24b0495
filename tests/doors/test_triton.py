"""The real server starts on loopback, says why it cannot, and leaves nothing behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client

from draftyard.doors import triton
from draftyard.doors.shell import session_members
from draftyard.doors.triton import embedded_server
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.server import Ports

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("the tokenizer is gone")
"""
HANGING = """
import time

class TritonPythonModel:
    def initialize(self, args):
        print("hanging", flush=True)
        time.sleep(600)
"""
CONFIG = """
name: "{name}"
backend: "{backend}"
input {{ name: "IN" data_type: TYPE_INT32 dims: 1 }}
output {{ name: "OUT" data_type: TYPE_INT32 dims: 1 }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""
pytestmark = pytest.mark.server


def make_model(repository: Path, name: str, code: str, backend: str = "python") -> Path:
    version = repository / "models" / name / "1"
    version.mkdir(parents=True)
    if code:
        (version / "model.py").write_text(code)
    (version.parent / "config.pbtxt").write_text(CONFIG.format(name=name, backend=backend))
    return repository


def echo(url: str, name: str, number: int) -> int:
    tensor = http_client.InferInput("IN", [1], "INT32")
    tensor.set_data_from_numpy(np.array([number], dtype=np.int32))
    client = http_client.InferenceServerClient(url)
    try:
        return int(client.infer(name, [tensor]).as_numpy("OUT")[0])
    finally:
        client.close()


def regions() -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"draftyard-{os.getpid()}-*")]


def test_two_servers_at_once_start_answer_and_leave_nothing(tmp_path):
    repository = make_model(tmp_path / "repository", "echo", ECHO)
    make_model(repository, "second", ECHO)
    before = sorted(repository.rglob("*"))
    began = time.monotonic()
    with ExitStack() as stack:
        servers = [
            stack.enter_context(embedded_server(repository, log_path=tmp_path / f"{n}.log", ready_timeout_s=60))
            for n in range(2)
        ]
        for server in servers:
            assert echo(server.address.http_url, "echo", 41) == 41
            assert echo(server.address.http_url, "second", 42) == 42
            assert server.wait_for_exit(0) is None
            assert len(session_members(server.pid)) >= 2
            assert "successfully loaded" in server.log_path.read_text()
        assert regions()
    assert time.monotonic() - began < 16
    assert [session_members(server.pid) for server in servers] == [(), ()]
    assert regions() == []
    assert sorted(repository.rglob("*")) == before


def test_a_busy_port_is_named_before_anything_starts(tmp_path):
    repository = make_model(tmp_path / "repository", "echo", ECHO)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with (
            pytest.raises(Failure, match=rf"grpc port {port} cannot be used: Address already in use") as caught,
            embedded_server(repository, log_path=tmp_path / "log.txt", ports=Ports(8000 + 40000, port, port)),
        ):
            pass
    assert caught.value.code == ExitCode.ENVIRONMENT
    assert f"metrics port {port}" in caught.value.message
    assert "ports must differ" in caught.value.message
    assert not (tmp_path / "log.txt").exists()


def test_a_model_that_does_not_load_says_why(tmp_path):
    repository = make_model(tmp_path / "repository", "broken", BROKEN)
    began = time.monotonic()
    with (
        pytest.raises(Failure, match="the tokenizer is gone") as caught,
        embedded_server(repository, log_path=tmp_path / "log.txt"),
    ):
        pass
    assert time.monotonic() - began < 15
    assert str(tmp_path / "log.txt") in caught.value.hint
    assert "before it was ready" in caught.value.message
    assert "CudaDriverHelper" not in caught.value.message
    assert regions() == []


def test_a_model_that_hangs_is_bounded(tmp_path):
    repository = make_model(tmp_path / "repository", "hanging", HANGING)
    began = time.monotonic()
    with (
        pytest.raises(Failure, match="not ready after 2 s"),
        embedded_server(repository, log_path=tmp_path / "log.txt", ready_timeout_s=2),
    ):
        pass
    assert time.monotonic() - began < 10
    assert "hanging" in (tmp_path / "log.txt").read_text()
    assert regions() == []


def test_nothing_is_left_after_the_server_was_killed(tmp_path):
    repository = make_model(tmp_path / "repository", "echo", ECHO)
    with embedded_server(repository, log_path=tmp_path / "log.txt") as server:
        models = session_members(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait_for_exit(10) == -signal.SIGKILL
        assert models
    assert session_members(server.pid) == ()
    assert regions() == []


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not installed")
def test_the_server_ends_when_its_starter_is_killed(tmp_path):
    repository = make_model(tmp_path / "repository", "echo", ECHO)
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from draftyard.doors.triton import embedded_server\n"
        "with embedded_server(Path(sys.argv[1]), log_path=Path(sys.argv[2])) as server:\n"
        "    Path(sys.argv[3]).write_text(str(server.pid))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    told = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "build"), "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", code, str(repository), str(tmp_path / "log.txt"), str(told)]
    assert subprocess.run(words, env=environment, timeout=60).returncode == -signal.SIGKILL
    leader, deadline = int(told.read_text()), time.monotonic() + 20
    while (living := [pid for pid in session_members(leader) if not is_zombie(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert living == []


def is_zombie(pid: int) -> bool:
    """True for a dead process that nobody has waited for; here its new parent may never do so."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_nothing_is_left_after_an_interrupt(tmp_path):
    repository = make_model(tmp_path / "repository", "echo", ECHO)
    seen = []
    with (
        pytest.raises(KeyboardInterrupt),
        embedded_server(repository, log_path=tmp_path / "log.txt") as server,
    ):
        seen.append(server)
        raise KeyboardInterrupt
    assert session_members(seen[0].pid) == ()
    assert regions() == []


def test_given_ports_are_used_and_a_backend_of_our_own_imports_this_package(tmp_path):
    ports = triton._free_ports()
    repository = make_model(tmp_path / "repository", "engine", "", backend="own")
    backend = tmp_path / "backends" / "own"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(f"import draftyard.nouns.generation\nimport neighbour\n{ECHO}")
    (backend / "neighbour.py").write_text("")
    backends = tmp_path / "backends"
    with embedded_server(repository, log_path=tmp_path / "log.txt", ports=ports, backends=backends) as server:
        assert server.address.http_url == f"127.0.0.1:{ports.http}"
        assert echo(server.address.http_url, "engine", 5) == 5
    assert sorted(path.name for path in backend.iterdir()) == ["model.py", "neighbour.py"]


def test_a_missing_package_a_missing_libpython_and_an_empty_repository_are_failures(tmp_path, monkeypatch):
    with pytest.raises(Failure, match="holds no models"), embedded_server(tmp_path, log_path=tmp_path / "log.txt"):
        pass
    repository = make_model(tmp_path / "repository", "echo", ECHO)
    monkeypatch.setattr(triton.sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(triton.sys, "base_prefix", str(tmp_path))
    with pytest.raises(Failure, match=r"libpython3\.\d+\.so\.1\.0 .* is missing") as caught:
        triton._libpython_directory()
    assert "apt-get install libpython3" in caught.value.hint
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Failure, match="not installed"), embedded_server(repository, log_path=tmp_path / "log.txt"):
        pass
