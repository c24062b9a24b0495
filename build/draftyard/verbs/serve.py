"""Serves a repository with the embedded server until it is told to stop."""

import signal
import sys
from pathlib import Path
from typing import NoReturn

from draftyard.doors.policy_files import read_policy
from draftyard.doors.triton import RunningServer, embedded_server
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.repository import ModelName
from draftyard.nouns.server import Ports
from draftyard.verbs.gateway import GatewayOptions, open_gateway, run_gateway
from draftyard.verbs.interruption import signals_interrupt

POLL_S = 0.5


def serve(
    repository: Path,
    *,
    log_path: Path,
    ports: Ports | None = None,
    ready_timeout_s: float = 120,
    openai: GatewayOptions | None = None,
    policy: Path | None = None,
) -> ExitCode:
    """Start, print the addresses to stdout, wait for SIGINT or SIGTERM, then let running requests end and stop.

    A `policy` file is followed, also when it is replaced meanwhile. With `openai` a gateway for OpenAI's API runs in
    front, and ends before the server does. Returns INTERRUPTED.
    Failure when the server does not start or ends by itself, or when the gateway's address or keys cannot be used.
    """
    # A service manager stops with SIGTERM, and a background job of a shell ignores SIGINT: both take the way of Ctrl-C.
    with signals_interrupt(signal.SIGTERM, signal.SIGINT):
        try:
            # Before the server, which takes longer: what is wrong with the gateway's options shows at once.
            opened = None if openai is None else open_gateway(openai)
            if policy is not None:
                read_policy(policy)
            with embedded_server(
                repository, log_path=log_path, ports=ports, ready_timeout_s=ready_timeout_s, policy=policy
            ) as server:
                _announce(server)
                if opened is not None:
                    print(f"openai   {opened.url}", flush=True)
                    run_gateway(opened, server.address.grpc_url, lambda: server.wait_for_exit(0) is None)
                _watch(server)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr, flush=True)
            return ExitCode.INTERRUPTED


def _announce(server: RunningServer) -> None:
    address = server.address
    lines = (
        f"entry    {ModelName.ENTRY}",
        f"http     http://{address.http_url}",
        f"grpc     {address.grpc_url}",
        f"metrics  http://{address.metrics_url}/metrics",
        f"log      {server.log_path}",
    )
    print("\n".join(lines), flush=True)


def _watch(server: RunningServer) -> NoReturn:
    """An interrupt comes, or the server ended and that is a failure."""
    while (code := server.wait_for_exit(POLL_S)) is None:
        pass
    raise Failure(f"the server ended by itself with exit code {code}", f"read {server.log_path}", ExitCode.WORK_FAILED)
