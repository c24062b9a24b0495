"""Programs are started, waited for and ended; what failed can be pasted into a shell."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from draftyard.doors.shell import reading_from, run, session_members, start, writing_into
from draftyard.nouns.errors import ExitCode, Failure

PYTHON = sys.executable
# A leader with a child that ignores SIGTERM and would live for a minute.
FAMILY = (
    "import subprocess, sys, time\n"
    "deaf = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True);'\n"
    "deaf += 'time.sleep(60)'\n"
    "child = subprocess.Popen([sys.executable, '-c', deaf], stdout=subprocess.PIPE)\n"
    "child.stdout.readline()\n"
    "print('born', flush=True)\n"
    "time.sleep(60)\n"
)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def wait_for_text(path: Path, text: str) -> None:
    until = time.monotonic() + 20
    while text not in path.read_text():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_run_returns_output_and_logs_it(tmp_path):
    log = tmp_path / "log.txt"
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    finished = run([PYTHON, "-c", code], timeout_s=20, log_path=log)
    assert (finished.exit_code, finished.stdout, finished.stderr) == (0, "out\n", "err\n")
    assert log.read_text().splitlines()[1:] == ["out", "err", "# exit code 0"]


def test_run_passes_directory_environment_and_no_stdin(tmp_path):
    code = "import os, sys; print(os.getcwd(), os.environ['WORD'], repr(sys.stdin.read()))"
    finished = run([PYTHON, "-c", code], timeout_s=20, cwd=tmp_path, environment={"WORD": "a b"})
    assert finished.stdout.split() == [str(tmp_path.resolve()), "a", "b", "''"]


def test_a_failing_command_is_shown_as_it_can_be_pasted():
    with pytest.raises(Failure) as caught:
        run([PYTHON, "-c", "import sys; sys.exit('it broke')", "a b"], timeout_s=20)
    assert caught.value.code == ExitCode.WORK_FAILED
    assert caught.value.message.startswith("exit code 1 from ")
    assert "'a b'" in caught.value.message
    assert caught.value.message.endswith(": it broke")
    assert run([PYTHON, "-c", "raise SystemExit(3)"], timeout_s=20, check=False).exit_code == 3


def test_a_command_that_hangs_is_ended():
    began = time.monotonic()
    with pytest.raises(Failure, match=r"not finished after 0.5 s: .*sleep"):
        run([PYTHON, "-c", "import time; time.sleep(60)"], timeout_s=0.5)
    assert time.monotonic() - began < 15


def test_run_leaves_no_descendant():
    code = "import subprocess, sys, os; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']," \
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); print(os.getpid())"  # fmt: skip
    pid = int(run([PYTHON, "-c", code], timeout_s=20).stdout)
    until = time.monotonic() + 10
    while session_members(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert session_members(pid) == ()


def test_a_missing_program_is_the_environments_fault(tmp_path):
    with pytest.raises(Failure, match="cannot start no-such-program: No such file") as caught:
        run(["no-such-program"], timeout_s=5)
    assert caught.value.code == ExitCode.ENVIRONMENT
    with pytest.raises(Failure, match="cannot start no-such-program"):
        start(["no-such-program"], cwd=tmp_path, log_path=tmp_path / "log.txt")


def test_stop_ends_program_and_deaf_children(tmp_path):
    program = start([PYTHON, "-c", FAMILY], cwd=tmp_path, log_path=tmp_path / "log.txt")
    wait_for_text(program.log_path, "born")
    assert len(session_members(program.pid)) == 1
    assert program.exit_code() is None
    assert program.stop(5) == -signal.SIGTERM
    assert session_members(program.pid) == ()
    assert program.stop(5) == -signal.SIGTERM
    with pytest.raises(ChildProcessError):
        os.waitpid(program.pid, os.WNOHANG)


def test_stop_kills_after_the_deadline(tmp_path):
    program = start([PYTHON, "-c", DEAF], cwd=tmp_path, log_path=tmp_path / "log.txt")
    wait_for_text(program.log_path, "deaf")
    assert program.stop(0.2) == -signal.SIGKILL


def test_children_of_a_killed_program_are_ended_too(tmp_path):
    program = start([PYTHON, "-c", FAMILY], cwd=tmp_path, log_path=tmp_path / "log.txt")
    wait_for_text(program.log_path, "born")
    os.kill(program.pid, signal.SIGKILL)
    assert program.wait(10) == -signal.SIGKILL
    assert len(session_members(program.pid)) == 1
    assert program.stop(5) == -signal.SIGKILL
    assert session_members(program.pid) == ()


def test_wait_returns_the_exit_code_or_none(tmp_path):
    program = start([PYTHON, "-c", "raise SystemExit(7)"], cwd=tmp_path, log_path=tmp_path / "log.txt")
    try:
        assert program.wait(20) == 7
    finally:
        assert program.stop(1) == 7
    program = start([PYTHON, "-c", "import time; time.sleep(60)"], cwd=tmp_path, log_path=tmp_path / "log.txt")
    try:
        assert program.wait(0.05) is None
    finally:
        program.stop(1)


def test_bytes_stream_through_a_program(tmp_path):
    with writing_into(["tr", "a", "b"], tmp_path / "out", timeout_s=30) as stream:
        for _ in range(100):
            stream.write(b"a" * 10_000)
    assert (tmp_path / "out").read_bytes() == b"b" * 1_000_000
    with reading_from(["cat", str(tmp_path / "out")], timeout_s=30) as stream:
        assert len(stream.read()) == 1_000_000


def test_a_program_that_fails_in_the_middle_of_a_stream_says_why(tmp_path):
    with (
        pytest.raises(Failure, match=r"exit code 3 from sh -c .*enough"),
        writing_into(["sh", "-c", "echo enough >&2; exit 3"], tmp_path / "out", timeout_s=30) as stream,
    ):
        for _ in range(100):
            stream.write(b"a" * 100_000)
    with pytest.raises(Failure, match="not finished after"), reading_from(["sleep", "60"], timeout_s=0.2) as stream:
        assert stream.read() == b""
    with pytest.raises(Failure, match="cannot start"), reading_from(["no-such-program"], timeout_s=1):
        pass
