"""Requests and answers of the HTTP front as values, and problems in the shape that OpenAI's clients read."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

JSON = "application/json"
EVENTS = "text/event-stream"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class ApiProblem(Exception):
    """A request that is not answered: an HTTP status and the error object of OpenAI's API.

    `kind` is the object's `type`; `param` names the field at fault; `retry_after_s` asks to come back later.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The error object as JSON."""
        found = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": found}, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class WebRequest:
    """The part of a request that its handler reads; `argument` is what the path holds beyond the route's own words."""

    body: bytes = b""
    argument: str = ""


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """A whole answer."""

    body: bytes
    content_type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WebStream:
    """An answer in server-sent events; `events` yields their bytes, whole events at a time.

    When `events` raises `ApiProblem` the stream ends with an error event. `close` is awaited in every case, also when
    the client goes before the first event.
    """

    events: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]]
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FrontState:
    """What the front is doing: requests that run, clients that went before their answer, and whether it stops."""

    in_flight: int
    abandoned: int
    draining: bool


Handler: TypeAlias = Callable[[WebRequest], Awaitable[WebAnswer | WebStream]]


@dataclass(frozen=True, slots=True)
class WebRoute:
    """One path with one method. `guarded` asks for the API key; `counted` counts against the bound of requests."""

    method: str
    path: str
    handler: Handler
    guarded: bool = False
    counted: bool = False


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """What the front allows. `timeout_s` is for a whole request, `drain_s` for those that run when it is stopped."""

    max_in_flight: int = 64
    max_body_bytes: int = 1 << 20
    body_timeout_s: float = 20.0
    timeout_s: float = 300.0
    drain_s: float = 30.0
