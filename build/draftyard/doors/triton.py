"""Runs the Triton server of the nvidia-pytriton package on loopback, and leaves nothing behind."""

import http.client
import importlib.util
import itertools
import os
import re
import shutil
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.shell import RunningProgram, start
from draftyard.doors.shipped_files import PACKAGE_DIRECTORY, backends_directory
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems
from draftyard.nouns.server import LOOPBACK, Ports, ServerAddress, loopback_address

POLL_S = 0.05
PROBE_TIMEOUT_S = 5.0
# After a cancelled request the server may wait for ever; its own limit comes first, then ours.
EXIT_TIMEOUT_S = 8
EXTRA_EXIT_S = 3.0
UNREADY_STOP_S = 1.0
SHOWN_LINES = 6
SHOWN_CHARACTERS = 500
ERROR_LINE = re.compile(r'(\S+ E \d+ \S+\] "?|error: )(?P<message>.*?)"?$')
# Printed on every machine without a GPU.
HARMLESS = ("CudaDriverHelper has not been initialized", "Failed to initialize NVML")
# Where the entry looks for its policy, as rules/triton_repository.py places it.
POLICY_NAME = "policy.json"
SHARED_MEMORY = Path("/dev/shm")
_RUN_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """Where the parts of the server lie: the binary, the Python backend's folder, its stub, the bundled libraries."""

    binary: Path
    python_backend: Path
    stub: Path
    libraries: Path


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready, while its context lasts."""

    address: ServerAddress
    program: RunningProgram

    @property
    def pid(self) -> int:
        """The process of the server; its models run in children of it."""
        return self.program.pid

    @property
    def log_path(self) -> Path:
        """Everything the server and its models printed."""
        return self.program.log_path

    def wait_for_exit(self, timeout_s: float) -> int | None:
        """The exit code when the server ends by itself within the time, else None."""
        return self.program.wait(timeout_s)


@contextmanager
def embedded_server(
    repository: Path,
    *,
    log_path: Path,
    ready_timeout_s: float = 120,
    ports: Ports | None = None,
    backends: Path | None = None,
    policy: Path | None = None,
) -> Iterator[RunningServer]:
    """Serve `repository`/models with the view of a working directory `repository`, ready when every model is.

    `ports` None takes free ones; `backends` is the folder of backends to serve with instead of this project's. `policy`
    is a policy file to follow instead of the repository's; it may be replaced while the server runs. Failure
    when a part is missing, a port is taken, a model does not load, or the server is not ready in time; it names the log
    and shows its first errors. On leaving, however that happens, the server, the processes of its models and its
    shared memory are gone.
    """
    models = _model_names(repository)
    files = _server_files()
    environment = _environment(files)
    chosen = _free_ports() if ports is None else _checked_ports(ports)
    prefix = f"draftyard-{os.getpid()}-{next(_RUN_NUMBERS)}-"
    with ExitStack() as stack:
        private = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="draftyard-server-")))
        stack.callback(_remove_shared_memory, prefix)
        _assemble_backends(private / "backends", files, backends_directory() if backends is None else backends)
        _mirror(repository.resolve(), private / "repository", policy)
        argv = _command(files.binary, private, chosen, prefix)
        program = start(argv, cwd=private / "repository", environment=environment, log_path=log_path)
        stop_after_s = [UNREADY_STOP_S]
        stack.callback(lambda: program.stop(stop_after_s[0]))
        _wait_ready(program, chosen, models, ready_timeout_s)
        stop_after_s[0] = EXIT_TIMEOUT_S + EXTRA_EXIT_S
        yield RunningServer(loopback_address(chosen), program)


def find_server() -> Path:
    """The server's binary; Failure of the environment names every part of the server that is missing."""
    return _server_files().binary


def find_libpython() -> Path:
    """Where the shared library of this Python lies, which the server's models need; Failure when there is none."""
    return _libpython_directory()


def _model_names(repository: Path) -> tuple[str, ...]:
    """The models of a repository, from its folders; Failure when there is none."""
    models = repository / "models"
    names = tuple(sorted(path.name for path in models.iterdir() if path.is_dir())) if models.is_dir() else ()
    if not names:
        raise Failure(f"{repository} holds no models", "give the folder of a generated repository")
    return names


def _server_files() -> ServerFiles:
    """Find the server in the running environment; problems are collected."""
    found = importlib.util.find_spec("pytriton")
    if found is None or not found.submodule_search_locations:
        raise Failure(
            "the Triton server is not installed in this environment",
            "pip install nvidia-pytriton==0.7.0 (Linux, x86-64 or aarch64)",
            ExitCode.ENVIRONMENT,
        )
    package = Path(next(iter(found.submodule_search_locations)))
    triton = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    files = ServerFiles(
        binary=triton / "bin" / "tritonserver",
        python_backend=triton / "backends" / "python",
        stub=triton / "python_backend_stubs" / version / "triton_python_backend_stub",
        libraries=package.parent / "nvidia_pytriton.libs",
    )
    hint = "pip install --force-reinstall nvidia-pytriton==0.7.0 with Python 3.8 to 3.13"
    wanted = (files.binary, files.python_backend / "libtriton_python.so", files.stub, files.libraries)
    problems = [Problem(f"{path} is missing", hint) for path in wanted if not path.exists()]
    raise_problems(problems, ExitCode.ENVIRONMENT)
    return files


def _environment(files: ServerFiles) -> Mapping[str, str]:
    """The server's environment: models find this interpreter through PATH and its own libpython through the loader."""
    binaries = Path(sys.executable).parent
    # What was there stays, last: containers find the GPU's driver through it.
    libraries = (str(files.libraries), str(_libpython_directory()), os.environ.get("LD_LIBRARY_PATH", ""))
    return {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": os.pathsep.join(path for path in libraries if path),
    }


def _libpython_directory() -> Path:
    """Where the shared library of this very Python lies; another build of the same version fails late and oddly."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    library = f"libpython{version}.so.1.0"
    configured = str(sysconfig.get_config_var("LIBDIR") or Path(sys.base_prefix) / "lib")
    multiarch = str(sysconfig.get_config_var("MULTIARCH") or "")
    directories = (Path(configured), Path(configured) / multiarch, Path(sys.base_prefix) / "lib")
    for directory in directories:
        if (directory / library).exists():
            return directory
    raise Failure(
        f"{library} of {sys.base_prefix} is missing; the server cannot run Python models without it",
        f"apt-get install libpython{version}, or use a Python built with --enable-shared",
        ExitCode.ENVIRONMENT,
    )


def _mirror(repository: Path, mirror: Path, policy: Path | None) -> None:
    """Link every file of `models` and everything beside it: models write `__pycache__` where they are loaded from.

    The interpreter of a model ignores PYTHONDONTWRITEBYTECODE, and an artefact must not change by being served.
    """
    mirror.mkdir()
    if policy is not None:
        (mirror / POLICY_NAME).symlink_to(policy.resolve())
    for path in repository.iterdir():
        if path.name != "models" and (policy is None or path.name != POLICY_NAME):
            (mirror / path.name).symlink_to(path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repository / "models", mirror / "models", copy_function=os.symlink, ignore=ignored)


def _assemble_backends(directory: Path, files: ServerFiles, own: Path) -> None:
    """Lay out a backend directory: the wheel keeps the stub elsewhere than the server looks for it."""
    python = directory / "python"
    python.mkdir(parents=True)
    for path in (*sorted(files.python_backend.iterdir()), files.stub):
        if path.is_file():
            # Copied: the server refuses a library that a link leads out of the backend directory.
            shutil.copy(path, python / path.name)
    for backend in sorted(path for path in own.iterdir() if path.is_dir() and path.name != "__pycache__"):
        copy = directory / backend.name
        shutil.copytree(backend, copy, ignore=shutil.ignore_patterns("__pycache__"))
        # Models do not read PYTHONPATH; a backend's own folder is searched, so they import the package that runs here.
        (copy / PACKAGE_DIRECTORY.name).symlink_to(PACKAGE_DIRECTORY)


def _command(binary: Path, private: Path, ports: Ports, prefix: str) -> tuple[str, ...]:
    return (
        *_ending_with_its_starter(),
        str(binary),
        f"--model-repository={private / 'repository' / 'models'}",
        f"--backend-directory={private / 'backends'}",
        "--disable-auto-complete-config",
        f"--http-address={LOOPBACK}",
        f"--http-port={ports.http}",
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={ports.metrics}",
        "--allow-gpu-metrics=false",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        "--log-format=ISO8601",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
    )


def _ending_with_its_starter() -> tuple[str, ...]:
    """Where util-linux is installed, the kernel stops the server when the thread that started it is killed."""
    setpriv = shutil.which("setpriv")
    return () if setpriv is None else (setpriv, "--pdeathsig", "TERM", "--")


def _free_ports() -> Ports:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        http_port, grpc_port, metrics_port = (int(one.getsockname()[1]) for one in sockets)
    return Ports(http_port, grpc_port, metrics_port)


def _checked_ports(ports: Ports) -> Ports:
    """The ports as given; Failure naming every one that another program holds."""
    numbers = {"http": ports.http, "grpc": ports.grpc, "metrics": ports.metrics}
    problems = []
    if len(set(numbers.values())) < len(numbers):
        problems.append(Problem(f"ports must differ: {numbers}", "choose three different ports"))
    for name, number in numbers.items():
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((LOOPBACK, number))
            except (OSError, OverflowError) as error:
                reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
                message = f"{name} port {number} cannot be used: {reason}"
                problems.append(Problem(message, "choose another port, or stop what listens there"))
    raise_problems(problems, ExitCode.ENVIRONMENT)
    return ports


def _wait_ready(program: RunningProgram, ports: Ports, models: tuple[str, ...], timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    paths = ("/v2/health/ready", *(f"/v2/models/{name}/ready" for name in models))
    while time.monotonic() < until:
        code = program.wait(POLL_S)
        if code is not None:
            raise _log_failure(f"the server ended with exit code {code} before it was ready", program)
        if all(_answers(ports.http, path) for path in paths):
            return
    raise _log_failure(f"the server was not ready after {timeout_s:g} s", program)


def _answers(port: int, path: str) -> bool:
    """True when the server says 200; a model that hangs must not hang us."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _log_failure(what: str, program: RunningProgram) -> Failure:
    shown = " | ".join(first_errors(program.log_path)) or "the log shows no error"
    return Failure(f"{what}: {shown}", f"read {program.log_path}", ExitCode.WORK_FAILED)


def first_errors(log_path: Path) -> tuple[str, ...]:
    """The first error messages of a server log; its last lines when no line is marked as an error."""
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    marked = (ERROR_LINE.match(line) for line in lines)
    errors = [found.group("message") for found in marked if found and not found.group("message").startswith(HARMLESS)]
    chosen = errors or [line for line in lines if line.strip()][-SHOWN_LINES:]
    # A model's message carries its trace with line breaks written as \n; the trace is for the log.
    shown = (line.split("\\n")[0].strip()[:SHOWN_CHARACTERS] for line in chosen)
    return tuple(dict.fromkeys(shown))[:SHOWN_LINES]


def _remove_shared_memory(prefix: str) -> None:
    """A server that was killed leaves the regions it shared with its models."""
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)
