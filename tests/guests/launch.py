"""Starts the server of the nvidia-pytriton package on loopback and stops it again."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Server:
    """Where a running server listens."""

    http: str
    grpc: str
    metrics: str
    pid: int
    log: Path
    exit_codes: list[int]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextlib.contextmanager
def serve(root: Path, backends_from: Path | None = None, exit_timeout_s: int = 8) -> Iterator[Server]:
    """The repository `root/models`, with `root` as working directory."""
    packages = Path(sysconfig.get_paths()["purelib"])
    triton = packages / "pytriton" / "tritonserver"
    backends = root / "backends"
    (backends / "python").mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (backends / "python" / name).symlink_to(triton / "backends" / "python" / name)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    (backends / "python" / "triton_python_backend_stub").symlink_to(stub)
    if backends_from:
        shutil.copytree(backends_from, backends / "tensorrtllm", ignore=shutil.ignore_patterns("__pycache__"))
    http, grpc, metrics = _free_ports(3)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{packages / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}",
    }
    argv = [str(triton / "bin" / "tritonserver"), f"--model-repository={root / 'models'}"]
    argv += [f"--backend-directory={backends}", "--disable-auto-complete-config"]
    argv += [f"--exit-timeout-secs={exit_timeout_s}"]
    argv += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"]
    argv += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}", "--allow-gpu-metrics=false"]
    prefix = f"guests-{os.getpid()}-{http}-"
    argv += [f"--backend-config=python,shm-region-prefix-name={prefix}"]
    log = root / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv, cwd=root, env=environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    codes: list[int] = []
    try:
        _wait_ready(f"http://127.0.0.1:{http}/v2/health/ready", process, log)
        urls = (f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", f"127.0.0.1:{metrics}")
        yield Server(*urls, process.pid, log, codes)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(exit_timeout_s + 2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        codes.append(process.wait(5))
        for region in Path("/dev/shm").glob(f"{prefix}*"):
            region.unlink(missing_ok=True)


def _wait_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(url, timeout=2).status == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"the server did not come up:\n{log.read_text(errors='replace')[-4000:]}")
