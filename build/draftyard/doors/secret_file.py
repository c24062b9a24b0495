"""Reads API keys from a file, which keeps them out of argument lists and environments."""

import stat
from pathlib import Path

from draftyard.nouns.errors import Failure
from draftyard.nouns.secret import Secret

SHORTEST_KEY = 16
LARGEST_FILE_BYTES = 64 * 1024


def read_keys(path: Path) -> tuple[Secret, ...]:
    """One key a line, so that an old and a new one hold side by side; blank lines are left out.

    Failure when the file cannot be read, may be read by everybody, is empty, or holds a key that is short or not ASCII.
    """
    try:
        mode = path.stat().st_mode
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise Failure(f"{path} is too large for a file of keys", "give a file with one key a line")
        text = path.read_bytes().decode("ascii", "strict")
    except OSError as error:
        raise Failure(f"cannot read the keys in {path}: {error.strerror}", "give a file with one key a line") from error
    except UnicodeDecodeError:
        raise Failure(f"{path} holds a key that is not ASCII", "clients cannot send such a key in a header") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise Failure(f"everybody on this machine may read or write {path}", f"chmod o-rw {path}")
    keys = tuple(Secret(line.strip()) for line in text.splitlines() if line.strip())
    if not keys:
        raise Failure(f"{path} holds no key", "write one key a line into it")
    if any(len(key.reveal()) < SHORTEST_KEY for key in keys):
        raise Failure(f"{path} holds a key of less than {SHORTEST_KEY} characters", "make one: openssl rand -hex 32")
    return keys
