"""A Ray cluster on this machine whose nodes pretend to be machines with different accelerators."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# Keeps this process on the loopback address when it joins; Ray reads it on import, and `ray start` must not see it.
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
os.environ.setdefault(_LOOPBACK, "0")
RAY = Path(sys.executable).parent / "ray"
SOURCES = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Machine:
    """One node, in a session of its own, so that it can be lost as a whole."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        argv = [str(RAY), "start", "--block", "--disable-usage-stats", "--node-ip-address", "127.0.0.1", *arguments]
        merged = {**os.environ, "PYTHONPATH": f"{SOURCES / 'build'}:{SOURCES}", "RAY_DEDUP_LOGS": "0", **environment}
        merged.pop(_LOOPBACK, None)
        self._process = subprocess.Popen(
            argv, env=merged, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def lose(self) -> None:
        """Kill everything of the node at once, as a power cut would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    @property
    def ended(self) -> bool:
        """True when it could not start, or was lost."""
        return self._process.poll() is not None


@contextmanager
def cluster(machines: Mapping[str, tuple[str, Mapping[str, str]]]) -> Iterator[tuple[str, dict[str, Machine]]]:
    """Start a head without work, and a machine for each name: its accelerator and its environment variables."""
    port = free_port()
    # Ray puts sockets there, whose paths may be 107 characters long.
    place = Path(tempfile.mkdtemp(prefix="ray-"))
    head = Machine(
        ["--head", "--port", str(port), "--num-cpus", "0", "--num-gpus", "0", "--include-dashboard", "false",
         "--temp-dir", str(place), "--object-store-memory", "80000000"],
        {},
    )  # fmt: skip
    address, found = f"127.0.0.1:{port}", {}
    try:
        _wait_for(address, 1, head)
        for number, (name, (accelerator, environment)) in enumerate(machines.items(), 2):
            resources = json.dumps({f"accelerator_type:{accelerator}": 1})
            found[name] = Machine(
                ["--address", address, "--num-cpus", "2", "--num-gpus", "1", "--resources", resources,
                 "--object-store-memory", "80000000"],
                environment,
            )  # fmt: skip
            _wait_for(address, number, found[name])
        yield address, found
    finally:
        for machine in (*found.values(), head):
            try:
                machine.lose()
            except ProcessLookupError:
                continue
        shutil.rmtree(place, ignore_errors=True)


def _wait_for(address: str, nodes: int, machine: Machine) -> None:
    """Until so many nodes are alive; `machine` is the one that was started last."""
    import ray

    until = time.monotonic() + 60
    while time.monotonic() < until and not machine.ended:
        if not _listens(address):
            time.sleep(0.2)
            continue
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            alive = sum(node["Alive"] for node in ray.nodes())
        except (ConnectionError, RuntimeError):
            alive = 0
        finally:
            ray.shutdown()
        if alive >= nodes:
            return
        time.sleep(0.5)
    raise TimeoutError(f"{address} has not {nodes} nodes")


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
