"""Starts other programs: argument lists only, output captured and logged, always a time limit, nothing left behind."""

import logging
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from draftyard.nouns.errors import ExitCode, Failure

LOG = logging.getLogger(__name__)
POLL_S = 0.02
KILL_WAIT_S = 10.0
SHOWN_LINES = 5


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program that ended left: its exit code (negative: the signal that ended it) and its output."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    seconds: float


class RunningProgram:
    """A program in the background, leader of a session of its own, so that all its descendants can be found.

    The leader is waited for (reaped) only after its session was cleared: until then its pid cannot be given to another
    program, so that no signal ever reaches a stranger.
    """

    def __init__(self, argv: tuple[str, ...], process: "subprocess.Popen[bytes]", log_path: Path) -> None:
        self.argv = argv
        self.pid = process.pid
        self.log_path = log_path
        self._process = process
        self._exit_code: int | None = None

    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        if self._exit_code is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                exited = ended.si_code == os.CLD_EXITED
                self._exit_code = ended.si_status if exited else -ended.si_status
        return self._exit_code

    def wait(self, timeout_s: float) -> int | None:
        """The exit code as soon as it ends, None when it still runs after `timeout_s`."""
        until = time.monotonic() + timeout_s
        while (code := self.exit_code()) is None and time.monotonic() < until:
            time.sleep(POLL_S)
        return code

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, then after `timeout_s` SIGKILL; descendants that outlive it are killed too. Returns the exit code.

        Safe to call again. An interrupt while waiting kills at once and is then passed on.
        """
        if self._process.returncode is not None:
            return self._exit_code or 0
        try:
            if self.exit_code() is None:
                os.kill(self.pid, signal.SIGTERM)
                if self.wait(timeout_s) is None:
                    LOG.warning("killed after %g s: %s", timeout_s, shlex.join(self.argv))
        finally:
            self._clear_session()
        return self._exit_code or 0

    def _clear_session(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        until = time.monotonic() + KILL_WAIT_S
        while time.monotonic() < until:
            ended = self.exit_code() is not None
            others = session_members(self.pid)
            for pid in others:
                _kill(pid)
            if ended and not others:
                break
            time.sleep(POLL_S)
        self._process.wait(KILL_WAIT_S)
        LOG.debug("ended with %s: %s", self._exit_code, shlex.join(self.argv))


def session_members(leader_pid: int) -> tuple[int, ...]:
    """Pids of the living processes in the session of `leader_pid`, the leader apart."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == leader_pid:
            continue
        try:
            # The name of the program stands in brackets and may hold blanks; state, parent, group, session follow.
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader_pid and fields[0] not in ("Z", "X"):
            found.append(int(entry.name))
    return tuple(sorted(found))


def start(
    argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None, log_path: Path
) -> RunningProgram:
    """Start a program in the background; stdout and stderr go to `log_path`, which is written anew.

    Whoever starts it calls `stop`. Failure when it cannot be started.
    """
    words = tuple(argv)
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            process = _launch(words, cwd, environment, log.fileno(), subprocess.STDOUT)
    except OSError as error:
        raise _not_started(words, error) from error
    LOG.debug("started %d: %s", process.pid, shlex.join(words))
    return RunningProgram(words, process, log_path)


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    check: bool = True,
    input_path: Path | None = None,
) -> Finished:
    """Run a program to its end and return its output.

    Failure when it cannot be started, when it needs longer than `timeout_s`, and, with `check`, when it fails; each
    shows the command as it can be pasted into a shell. `log_path` gets the command and everything it printed;
    `input_path` is what it reads from stdin, nothing without one.
    """
    words = tuple(argv)
    began = time.monotonic()
    try:
        with (input_path or Path(os.devnull)).open("rb") as given:
            process = _launch(words, cwd, environment, subprocess.PIPE, subprocess.PIPE, given.fileno())
    except OSError as error:
        raise _not_started(words, error) from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        message = f"not finished after {timeout_s:g} s: {shlex.join(words)}"
        raise Failure(message, "run it by hand to see where it hangs", ExitCode.WORK_FAILED) from None
    finally:
        _end(process)
    seconds = time.monotonic() - began
    finished = Finished(words, process.returncode, _text(output), _text(errors), seconds)
    LOG.debug("exit code %d after %.1f s: %s", finished.exit_code, seconds, shlex.join(words))
    if log_path is not None:
        shown = f"$ {shlex.join(words)}\n{finished.stdout}{finished.stderr}# exit code {finished.exit_code}\n"
        log_path.write_text(shown, encoding="utf-8")
    if check and finished.exit_code != 0:
        raise _failed(finished, log_path)
    return finished


@contextmanager
def writing_into(argv: Sequence[str], output: Path, *, timeout_s: float) -> Iterator[IO[bytes]]:
    """Yield the stdin of a program whose stdout is the file `output`; Failure when the program fails or hangs."""
    with output.open("wb") as file, _streaming(argv, subprocess.PIPE, file.fileno(), timeout_s) as process:
        assert process.stdin is not None
        yield process.stdin


@contextmanager
def reading_from(argv: Sequence[str], *, timeout_s: float) -> Iterator[IO[bytes]]:
    """Yield the stdout of a program, to be read to its end; an exception ends it. Failure when it fails or hangs."""
    with _streaming(argv, subprocess.DEVNULL, subprocess.PIPE, timeout_s) as process:
        assert process.stdout is not None
        yield process.stdout


@contextmanager
def _streaming(argv: Sequence[str], stdin: int, stdout: int, timeout_s: float) -> "Iterator[subprocess.Popen[bytes]]":
    words, hung = tuple(argv), threading.Event()
    with tempfile.TemporaryFile() as errors:
        try:
            process = _launch(words, None, None, stdout, errors.fileno(), stdin)
        except OSError as error:
            raise _not_started(words, error) from error

        def end() -> None:
            if process.poll() is None:
                hung.set()
                os.killpg(process.pid, signal.SIGKILL)

        limit = threading.Timer(timeout_s, end)
        limit.start()
        failed = True
        try:
            yield process
            if process.stdin is not None:
                process.stdin.close()
            failed = process.wait(timeout_s) != 0
        except BrokenPipeError:
            process.wait(timeout_s)  # it ended before it had read all: what it said is the reason
        finally:
            limit.cancel()
            for stream in (process.stdin, process.stdout):
                _close(stream)
            _end_quietly(process)
        if hung.is_set():
            message = f"not finished after {timeout_s:g} s: {shlex.join(words)}"
            raise Failure(message, "run it by hand to see where it hangs", ExitCode.WORK_FAILED)
        if failed:
            errors.seek(0)
            raise _failed(Finished(words, process.returncode, "", _text(errors.read()), 0.0), None)


def _close(stream: "IO[bytes] | None") -> None:
    try:
        if stream is not None:
            stream.close()
    except BrokenPipeError:
        pass


def _end_quietly(process: "subprocess.Popen[bytes]") -> None:
    """Kill what still runs of a program whose output goes nowhere any more."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pid in session_members(process.pid):
        _kill(pid)


def _launch(
    argv: tuple[str, ...],
    cwd: Path | None,
    environment: Mapping[str, str] | None,
    stdout: int,
    stderr: int,
    stdin: int = subprocess.DEVNULL,
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=None if environment is None else dict(environment),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill what runs on in the program's session; its pid is safe to use while one member lives."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for pid in session_members(process.pid):
        _kill(pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace")


def _not_started(argv: tuple[str, ...], error: OSError) -> Failure:
    return Failure(
        f"cannot start {shlex.join(argv)}: {error.strerror}",
        f"check that {argv[0]} exists and may be executed",
        ExitCode.ENVIRONMENT,
    )


def _failed(finished: Finished, log_path: Path | None) -> Failure:
    lines = (finished.stderr.strip() or finished.stdout.strip()).splitlines()[-SHOWN_LINES:]
    shown = " | ".join(line.strip() for line in lines) or "it printed nothing"
    hint = "run the command by hand" if log_path is None else f"read {log_path}, or run the command by hand"
    return Failure(
        f"exit code {finished.exit_code} from {shlex.join(finished.argv)}: {shown}", hint, ExitCode.WORK_FAILED
    )
