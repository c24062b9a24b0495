"""The one error a person can act on, and the exit codes of the command."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns; scripts rely on these numbers."""

    DONE = 0
    WORK_FAILED = 1
    BAD_REQUEST = 2
    ENVIRONMENT = 3
    INTERRUPTED = 130


class Failure(Exception):
    """Something a person can fix: one line what, one line what to do."""

    def __init__(self, message: str, hint: str, code: ExitCode = ExitCode.BAD_REQUEST) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding of a check; several are collected and raised together."""

    message: str
    hint: str


def raise_problems(problems: Sequence[Problem], code: ExitCode = ExitCode.BAD_REQUEST) -> None:
    """Raise one `Failure` that shows every problem; do nothing when there is none."""
    if not problems:
        return
    if len(problems) == 1:
        raise Failure(problems[0].message, problems[0].hint, code)
    message = "; ".join(problem.message for problem in problems)
    hints = tuple(dict.fromkeys(problem.hint for problem in problems))
    raise Failure(f"{len(problems)} problems: {message}", " / ".join(hints), code)
