"""Refuses every connection that leaves the machine: for the tests, and in front of a command that must run offline."""

import runpy
import socket
import sys
from collections.abc import Sequence

LOOPBACK_NAMES = ("localhost", "::1", "0.0.0.0", "::", "")
_installed: list[bool] = []


class LeftTheMachineError(RuntimeError):
    """Something tried to reach beyond loopback."""


def install() -> None:
    """Watch the interpreter's own events: whatever connects through `socket` passes here; it cannot be taken away."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_watch)


def is_local(host: object) -> bool:
    """Loopback by number or name; this machine's own name and names of Unix sockets never leave it."""
    if host is None:
        return True
    name = host.decode() if isinstance(host, bytes) else str(host)
    return name in LOOPBACK_NAMES or name.startswith("127.") or name == socket.gethostname()


def _watch(event: str, arguments: Sequence[object]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        # Unix and netlink sockets have other addresses; those with host and port come as tuples with a string first.
        if isinstance(address, tuple) and isinstance(address[0], str) and not is_local(address[0]):
            raise LeftTheMachineError(f"{event} to {address[0]}")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname") and not is_local(arguments[0]):
        raise LeftTheMachineError(f"{event} of {arguments[0]!r}")


if __name__ == "__main__":
    # python -m tests.fakes.loopback_only MODULE WORDS...: runs the module, as with `python -m`, behind the guard.
    install()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
