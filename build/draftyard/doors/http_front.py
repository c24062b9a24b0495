"""The HTTP front: takes requests, keeps to its limits, and ends every answer in a way that a client can tell."""

import asyncio
import hmac
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.secret import Secret
from draftyard.nouns.web import EVENTS, JSON, ApiProblem, FrontLimits, FrontState, WebAnswer, WebRequest, WebRoute

LOG = logging.getLogger(__name__)
POLL_S = 0.25
# An answer that nobody reads is given up so long after its time.
UNREAD_S = 5.0
RETRY_S = 1
BEARER = "bearer "


class _Gone(Exception):
    """The client has closed its connection."""


class HttpFront:
    """Serves routes; what it counts can be read while it runs. `keys` empty: nobody needs one."""

    def __init__(self, routes: Sequence[WebRoute], limits: FrontLimits, keys: Sequence[Secret] = ()) -> None:
        self.limits = limits
        self.in_flight = 0
        self.abandoned = 0
        self.draining = False
        self._keys = tuple(key.reveal().encode() for key in keys)
        self._cut = asyncio.Event()
        self.application = Starlette(
            routes=[Route(route.path, _Endpoint(self, route), methods=[route.method]) for route in routes],
            exception_handlers={HTTPException: _not_found},
        )
        self.application.router.redirect_slashes = False

    def admit(self, route: WebRoute, headers: Mapping[str, str]) -> None:
        """`ApiProblem` unless this request may be served now."""
        if route.guarded and self._keys and not self._knows(headers.get("authorization", "")):
            raise ApiProblem(401, "the API key is missing or wrong: send it as a bearer token", code="invalid_api_key")
        if route.counted and self.draining:
            raise _stopping()
        if route.counted and self.in_flight >= self.limits.max_in_flight:
            raise ApiProblem(
                429,
                f"{self.in_flight} requests are running: try again later",
                kind="rate_limit_error",
                code="too_many_requests",
                retry_after_s=RETRY_S,
            )

    def state(self) -> FrontState:
        """What it is doing now."""
        return FrontState(self.in_flight, self.abandoned, self.draining)

    def cut_off(self) -> None:
        """End what still runs: streams get an error event."""
        self._cut.set()

    async def cut(self) -> None:
        """Returns when running requests must end."""
        await self._cut.wait()

    def _knows(self, header: str) -> bool:
        given = header[len(BEARER) :].strip().encode() if header.lower().startswith(BEARER) else b""
        # Every key is compared, each in constant time: how long it takes tells nothing.
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        return any(matches)


class _Endpoint:
    """One route as an ASGI application."""

    def __init__(self, front: HttpFront, route: WebRoute) -> None:
        self._front = front
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        front, exchange = self._front, _Exchange(scope, receive, send)
        counted = False
        try:
            front.admit(self._route, exchange.headers)
            counted = self._route.counted
            front.in_flight += counted
            await self._served(exchange)
        except ApiProblem as problem:
            await exchange.refuse(problem)
        except _Gone:
            front.abandoned += 1
        except Exception:
            LOG.exception("%s failed", self._route.path)
            await exchange.refuse(_broken())
        finally:
            front.in_flight -= counted

    async def _served(self, exchange: "_Exchange") -> None:
        limits = self._front.limits
        body = b""
        if self._route.method == "POST":
            body = await exchange.read(limits)
        work = asyncio.ensure_future(self._answered(exchange, body))
        gone = asyncio.ensure_future(exchange.until_gone())
        cut = asyncio.ensure_future(self._front.cut())
        limit_s = limits.timeout_s + UNREAD_S
        try:
            await asyncio.wait({work, gone, cut}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not (work.done() or exchange.ended):
                work.cancel()
            await asyncio.wait({work})
            if not work.cancelled():
                return work.result()
            if gone.done():
                raise _Gone
            raise _stopping() if cut.done() else _too_long(limits.timeout_s)
        finally:
            for task in (work, gone, cut):
                task.cancel()

    async def _answered(self, exchange: "_Exchange", body: bytes) -> None:
        argument = str(exchange.scope.get("path_params", {}).get("argument", ""))
        answer = await self._route.handler(WebRequest(body, argument))
        if isinstance(answer, WebAnswer):
            await exchange.answer(answer)
            return
        try:
            await exchange.start(200, EVENTS, (("cache-control", "no-cache"), *answer.headers))
            async for event in answer.events:
                await exchange.send_body(event, more=True)
            await exchange.send_body(b"", more=False)
        finally:
            await answer.close()


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._receive = receive
        self._send = send
        self._started = False
        self._streaming = False
        self.ended = False

    async def read(self, limits: FrontLimits) -> bytes:
        """The whole body; `ApiProblem` when it is too large, too slow, or says to be something else than JSON."""
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != JSON:
            raise ApiProblem(415, f"send the body as {JSON}", code="unsupported_media_type")
        declared = self.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > limits.max_body_bytes:
            raise _too_large(limits)
        try:
            return await asyncio.wait_for(self._body(limits), limits.body_timeout_s)
        except asyncio.TimeoutError:
            raise ApiProblem(408, f"the body did not come within {limits.body_timeout_s:g} s") from None

    async def _body(self, limits: FrontLimits) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limits.max_body_bytes:
                raise _too_large(limits)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def until_gone(self) -> None:
        """Returns when the client has closed its connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, answer: WebAnswer) -> None:
        """Send a whole answer."""
        length = ("content-length", str(len(answer.body)))
        await self.start(answer.status, answer.content_type, (length, *answer.headers))
        await self.send_body(answer.body, more=False)

    async def refuse(self, problem: ApiProblem) -> None:
        """The problem as an answer, or, when a stream has begun, as its last event, which no end mark follows."""
        if self.ended:
            return
        if self._streaming:
            await self.send_body(b"data: " + problem.body() + b"\n\n", more=False)
        elif not self._started:
            await self.answer(WebAnswer(problem.body(), JSON, problem.status, problem_headers(problem)))

    async def start(self, status: int, content_type: str, headers: tuple[tuple[str, str], ...]) -> None:
        """Send status and headers."""
        self._started = True
        self._streaming = content_type == EVENTS
        sent = [(name.encode(), value.encode()) for name, value in (("content-type", content_type), *headers)]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    async def send_body(self, body: bytes, *, more: bool) -> None:
        """Send a piece; waits while the client does not read."""
        self.ended = not more
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class _Server(uvicorn.Server):
    """Tells the front when it is asked to stop, and ends what outlives the time for it."""

    def __init__(self, config: uvicorn.Config, front: HttpFront) -> None:
        super().__init__(config)
        self._front = front

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._front.draining = True
        late = asyncio.get_running_loop().call_later(self._front.limits.drain_s, self._front.cut_off)
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Failure when the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        message = f"{host} port {port} cannot be used: {error}"
        raise Failure(message, "choose another port, or stop what listens there", ExitCode.ENVIRONMENT) from error
    return listener


async def serve_front(front: HttpFront, listener: socket.socket, holds: Callable[[], bool]) -> None:
    """Serve until SIGTERM or SIGINT, or until `holds` says False; running requests may end within `drain_s`.

    A signal is passed on to the handler that stood before, after the last request has ended.
    """
    config = uvicorn.Config(
        front.application,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=math.ceil(front.limits.drain_s + UNREAD_S),
    )
    server = _Server(config, front)
    watching = asyncio.ensure_future(_watch(server, holds))
    try:
        await server.serve([listener])
    finally:
        watching.cancel()


async def _watch(server: _Server, holds: Callable[[], bool]) -> None:
    while holds():
        await asyncio.sleep(POLL_S)
    server.should_exit = True


async def _not_found(request: Request, error: Exception) -> Response:
    """Unknown paths and methods in the shape of all other problems."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    what = "there is no such path" if status == 404 else f"{request.method} is not offered here"
    code = "not_found" if status == 404 else "method_not_allowed"
    return Response(ApiProblem(status, what, code=code).body(), status, headers, JSON)


def problem_headers(problem: ApiProblem) -> tuple[tuple[str, str], ...]:
    """What goes with the status: when to come back, how to identify, that the rest of a body is not read."""
    headers: list[tuple[str, str]] = []
    if problem.retry_after_s is not None:
        headers.append(("retry-after", str(problem.retry_after_s)))
    if problem.status == 401:
        headers.append(("www-authenticate", "Bearer"))
    if problem.status in (408, 413, 415):
        headers.append(("connection", "close"))
    return tuple(headers)


def _stopping() -> ApiProblem:
    return ApiProblem(
        503, "the gateway is shutting down", kind="server_error", code="shutting_down", retry_after_s=RETRY_S
    )


def _too_long(timeout_s: float) -> ApiProblem:
    return ApiProblem(504, f"no whole answer within {timeout_s:g} s", kind="server_error", code="timeout")


def _too_large(limits: FrontLimits) -> ApiProblem:
    return ApiProblem(413, f"a body may have {limits.max_body_bytes} bytes", code="request_too_large")


def _broken() -> ApiProblem:
    return ApiProblem(500, "the gateway failed; its log has the reason", kind="server_error", code="internal_error")
