"""Serves OpenAI's API in front of a running Triton server, until it is told to stop."""

import asyncio
import ipaddress
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from draftyard.doors.endpoint import Endpoint
from draftyard.doors.http_front import HttpFront, listen, serve_front
from draftyard.doors.secret_file import read_keys
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.repository import ModelName
from draftyard.nouns.secret import Secret
from draftyard.nouns.server import LOOPBACK
from draftyard.nouns.web import FrontLimits
from draftyard.verbs.interruption import signals_interrupt
from draftyard.verbs.openai_service import OpenAiService, ServiceOptions

PORT = 9000


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Where to listen, under which name the model is served, who may ask, and how much."""

    host: str = LOOPBACK
    port: int = PORT
    model: str = ModelName.ENTRY
    key_file: Path | None = None
    default_max_tokens: int = 256
    most_tokens: int = 32768
    limits: FrontLimits = field(default_factory=FrontLimits)


@dataclass(frozen=True, slots=True)
class OpenGateway:
    """A gateway that listens and has read its keys, before it answers."""

    options: GatewayOptions
    listener: socket.socket
    keys: tuple[Secret, ...]

    @property
    def url(self) -> str:
        """What clients take as their base."""
        host, port = self.listener.getsockname()[:2]
        return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def gateway(grpc_url: str, options: GatewayOptions) -> ExitCode:
    """Listen, print the address to stdout, serve until SIGINT or SIGTERM, let running requests end.

    Returns INTERRUPTED. Failure when the address or the keys cannot be used. That the server answers is no condition:
    it may come and go, and `/health/ready` tells.
    """
    with signals_interrupt(signal.SIGTERM, signal.SIGINT):
        try:
            opened = open_gateway(options)
            print(f"openai   {opened.url}", flush=True)
            run_gateway(opened, grpc_url, lambda: True)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr, flush=True)
        return ExitCode.INTERRUPTED


def open_gateway(options: GatewayOptions) -> OpenGateway:
    """Read the keys and take the port. Failure when that cannot be, or when others could ask without a key."""
    if options.key_file is None and not _only_here(options.host):
        raise Failure(
            f"everybody who reaches {options.host} could use the gateway", "give --api-key-file, or listen on 127.0.0.1"
        )
    keys = () if options.key_file is None else read_keys(options.key_file)
    return OpenGateway(options, listen(options.host, options.port), keys)


def run_gateway(opened: OpenGateway, grpc_url: str, holds: Callable[[], bool]) -> None:
    """Serve until a signal comes or `holds` says False; the signal's handler is called when all requests have ended."""
    asyncio.run(_run(opened, grpc_url, holds))


async def _run(opened: OpenGateway, grpc_url: str, holds: Callable[[], bool]) -> None:
    options = opened.options
    serving = ServiceOptions(
        model=options.model,
        default_max_tokens=min(options.default_max_tokens, options.most_tokens),
        most_tokens=options.most_tokens,
        timeout_s=options.limits.timeout_s,
        needs_key=bool(opened.keys),
    )
    async with Endpoint(grpc_url, options.limits.timeout_s) as endpoint:
        service = OpenAiService(endpoint, serving)
        front = HttpFront(service.routes(lambda: front.state()), options.limits, opened.keys)
        await serve_front(front, opened.listener, holds)


def _only_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
