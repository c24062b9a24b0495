"""The `draftyard` command: words become typed values, one verb is called, its outcome becomes the exit code."""

import os
import signal
import sys
from collections.abc import Sequence

from draftyard.cli_words import make_parser
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.verbs.interruption import signals_interrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. What a person can fix is two lines on stderr, a bug shows its trace."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = make_parser().parse_args(words)
    from draftyard import cli_commands

    try:
        # Whoever ends the command with SIGTERM wants the server that it started to end too.
        with signals_interrupt(signal.SIGTERM):
            return int(cli_commands.COMMANDS[arguments.command](arguments, ("draftyard", *words)))
    except Failure as failure:
        print(f"error: {_one_line(failure.message)}\nhint: {_one_line(failure.hint)}", file=sys.stderr)
        return int(failure.code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; without this the interpreter complains once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.WORK_FAILED)


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    raise SystemExit(main())
