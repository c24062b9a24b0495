"""Asks a machine what a release needs to know of it: GPUs, containers, limits, ports, and what a user may do."""

import json
import os
import platform
import pwd
import resource
import shutil
import socket
import time
from pathlib import Path

from draftyard.doors.host import read_host
from draftyard.doors.shell import run
from draftyard.nouns.appliance import Surroundings
from draftyard.nouns.errors import Failure

_TIMEOUT_S = 60.0
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_IMAGE_TIMEOUT_S = 300.0
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
# Runs as the service user: writes and reads back a file in $1, then reads $2. A shell, for any user may run that one.
_PROBE = """
file="$1/.draftyard-probe-$$"
set -e
echo probe >"$file"
read -r found <"$file"
test "$found" = probe
rm "$file"
: <"$2"
"""
_VERSIONS = """
import importlib.metadata as m, json
found = {}
for name in ("tensorrt_llm", "tensorrt"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def gpu_text(fields: tuple[str, ...], processes: bool = False) -> str | None:
    """What nvidia-smi prints of GPUs, or of programs on them; None without a driver. Failure when it fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = "compute-apps" if processes else "gpu"
    argv = ["nvidia-smi", f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"]
    return run(argv, timeout_s=_TIMEOUT_S).stdout


def topology_text() -> str | None:
    """What `nvidia-smi topo -m` prints; None where it has no such answer."""
    done = run(["nvidia-smi", "topo", "-m"], timeout_s=_TIMEOUT_S, check=False)
    return done.stdout if done.exit_code == 0 else None


def runtime_text(runtime: str) -> str:
    """What the container runtime tells of itself, JSON; Failure when it is not there or does not answer."""
    argv = [runtime, "info", "--format", "json" if runtime == "podman" else "{{json .}}"]
    return run(argv, timeout_s=_TIMEOUT_S).stdout


def image_text(runtime: str, reference: str) -> str | None:
    """What the runtime tells of an image that is there, JSON; None when it is not there. Nothing is fetched."""
    done = run([runtime, "image", "inspect", reference], timeout_s=_TIMEOUT_S, check=False)
    return done.stdout if done.exit_code == 0 else None


def image_versions(runtime: str, reference: str) -> dict[str, str]:
    """TensorRT-LLM and TensorRT as installed in an image, asked inside it, offline; empty when it does not answer."""
    argv = [runtime, "run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", "python3", reference]
    done = run([*argv, "-c", _VERSIONS], timeout_s=_IMAGE_TIMEOUT_S, check=False)
    try:
        document = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return {str(name): str(version) for name, version in document.items()}


def cdi_names() -> tuple[str, ...]:
    """File names of the device specifications (CDI) of this machine."""
    return tuple(path.name for folder in CDI_FOLDERS if folder.is_dir() for path in sorted(folder.iterdir()))


def read_surroundings(scratch: Path, ports: tuple[int, ...], user: str | None, readable: Path) -> Surroundings:
    """The machine as the service will find it; `readable` is a file of the release that `user` has to read."""
    host = read_host(scratch)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Surroundings(
        now_s=time.time(),
        clock_synchronised=_clock_synchronised(),
        disk_free_bytes=host.disk_free_bytes,
        shared_memory_bytes=host.shared_memory_free_bytes,
        locked_memory_bytes=None if soft == resource.RLIM_INFINITY else soft,
        busy_ports=tuple(port for port in ports if _busy(port)),
        machine=platform.machine(),
        unwritable=_unwritable(scratch, user, readable),
        user=user or pwd.getpwuid(os.geteuid()).pw_name,
    )


def _clock_synchronised() -> bool | None:
    if shutil.which("timedatectl") is None:
        return None
    done = run(["timedatectl", "show", "-p", "NTPSynchronized", "--value"], timeout_s=_TIMEOUT_S, check=False)
    return {"yes": True, "no": False}.get(done.stdout.strip())


def _busy(port: int) -> bool:
    """Whether nobody else could listen there; a socket that only waits to close does not count."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


def _unwritable(scratch: Path, user: str | None, readable: Path) -> str:
    """Why the user cannot write and read back a file there, or read the release; "" when it can."""
    argv = ["/bin/sh", "-c", _PROBE, "probe", str(scratch.resolve()), str(readable.resolve())]
    if user is not None:
        ids = _ids(user)
        if ids != (os.geteuid(), os.getegid()):
            if os.geteuid() != 0:
                return f"only root can try it as {user}: run the command with sudo"
            argv = ["setpriv", f"--reuid={ids[0]}", f"--regid={ids[1]}", "--clear-groups", "--no-new-privs", *argv]
    # Like the service: no home and no cache of whoever asks.
    done = run(argv, timeout_s=_TIMEOUT_S, check=False, cwd=Path("/"), environment={"PATH": _SYSTEM_PATH})
    return "" if done.exit_code == 0 else " ".join(done.stderr.split())[-300:] or f"exit code {done.exit_code}"


def _ids(user: str) -> tuple[int, int]:
    try:
        found = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        if user.isdecimal():  # containers run as numbers that nobody named
            return int(user), int(user)
        raise Failure(f"there is no user {user}", f"make it: useradd --system {user}") from None
    return found.pw_uid, found.pw_gid
