"""Answers requests of OpenAI's API with the entry of a served repository."""

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field

from draftyard import __version__
from draftyard.doors.endpoint import Endpoint
from draftyard.nouns.entry_reply import EntryFailure, EntryFault, EntryReply
from draftyard.nouns.errors import Failure
from draftyard.nouns.openai import AnswerCounts, AnswerHead, OpenAiKind, OpenAiRequest
from draftyard.nouns.repository import ModelName
from draftyard.nouns.timeline import EntryRequest
from draftyard.nouns.web import PROMETHEUS, ApiProblem, FrontState, WebAnswer, WebRequest, WebRoute, WebStream
from draftyard.rules.openai_answer import (
    accepted_by_step,
    finish_reason,
    first_chunk,
    last_chunks,
    models,
    one_model,
    text_chunk,
    whole_answer,
)
from draftyard.rules.openai_document import document
from draftyard.rules.openai_request import entry_call, read_object, read_request
from draftyard.rules.prometheus_text import Histogram, Labels, histogram, metric, page

READY_KEPT_S = 5.0
READY_TIMEOUT_S = 10.0
PREFIXES = {OpenAiKind.CHAT: "chatcmpl-", OpenAiKind.COMPLETION: "cmpl-"}
CANCELLED = "cancelled"
# What each fault of the entry is to a client: status, type, code, seconds to wait.
PROBLEMS = {
    EntryFault.BAD_REQUEST: (400, "invalid_request_error", "invalid_value", None),
    EntryFault.BUSY: (503, "server_error", "overloaded", 1),
    EntryFault.UNREACHABLE: (503, "server_error", "unavailable", 5),
    EntryFault.TIMEOUT: (504, "server_error", "timeout", None),
    EntryFault.FAILED: (500, "server_error", "engine_error", None),
}


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What is served under which name, and what holds where a request says nothing."""

    model: str
    default_max_tokens: int
    most_tokens: int
    timeout_s: float
    needs_key: bool


@dataclass(slots=True)
class ServiceCounts:
    """What the service counted since it started."""

    outcomes: dict[tuple[str, str], int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    first_token: Histogram = field(default_factory=Histogram)
    whole: Histogram = field(default_factory=Histogram)

    def ended(self, kind: OpenAiKind, outcome: str) -> None:
        """Count one request."""
        key = (kind.value, outcome)
        self.outcomes[key] = self.outcomes.get(key, 0) + 1


@dataclass(slots=True)
class _Answering:
    """One answer as it grows."""

    kind: OpenAiKind
    began: float
    text: list[str] = field(default_factory=list)
    tokens_by_step: list[int] = field(default_factory=list)
    last: EntryReply | None = None
    input_tokens: int = 0

    def take(self, reply: EntryReply) -> None:
        """Add a reply; those without tokens are no step of the engine."""
        if reply.token_ids:
            self.tokens_by_step.append(len(reply.token_ids))
        self.input_tokens = reply.input_tokens or self.input_tokens
        self.last = reply

    def counts(self) -> AnswerCounts:
        """Tokens by their ids; the first step is the prefill's, those behind it verify."""
        drafted = (self.last.drafted if self.last else None) or 0
        accepted = (self.last.accepted if self.last else None) or 0
        return AnswerCounts(
            self.input_tokens,
            sum(self.tokens_by_step),
            drafted,
            accepted,
            accepted_by_step(self.tokens_by_step[1:], accepted),
        )

    @property
    def reason(self) -> str:
        """Why the entry ended."""
        return self.last.finish_reason if self.last else ""


class OpenAiService:
    """The handlers of the gateway. `endpoint` is open while requests are answered."""

    def __init__(self, endpoint: Endpoint, options: ServiceOptions) -> None:
        self.counts = ServiceCounts()
        self._endpoint = endpoint
        self._options = options
        self._created = int(time.time())
        self._probing = asyncio.Lock()
        self._probed_at: float | None = None
        self._ready_problem: ApiProblem | None = None
        self._document = json.dumps(
            document(options.model, __version__, options.needs_key, options.most_tokens)
        ).encode()

    def routes(self, state: Callable[[], FrontState]) -> tuple[WebRoute, ...]:
        """All routes; `state` tells what the front is doing."""

        async def metrics(request: WebRequest) -> WebAnswer:
            return WebAnswer(self._metrics(state()), PROMETHEUS)

        async def ready(request: WebRequest) -> WebAnswer:
            return await self._ready(state().draining)

        return (
            WebRoute("POST", "/v1/chat/completions", self._chat, guarded=True, counted=True),
            WebRoute("POST", "/v1/completions", self._complete, guarded=True, counted=True),
            WebRoute("GET", "/v1/models", self._models, guarded=True),
            WebRoute("GET", "/v1/models/{argument}", self._one_model, guarded=True),
            WebRoute("GET", "/health/live", self._live),
            WebRoute("GET", "/health/ready", ready),
            WebRoute("GET", "/metrics", metrics),
            WebRoute("GET", "/openapi.json", self._describe),
        )

    async def _chat(self, request: WebRequest) -> WebAnswer | WebStream:
        return await self._generate(OpenAiKind.CHAT, request)

    async def _complete(self, request: WebRequest) -> WebAnswer | WebStream:
        return await self._generate(OpenAiKind.COMPLETION, request)

    async def _generate(self, kind: OpenAiKind, request: WebRequest) -> WebAnswer | WebStream:
        try:
            asked = read_request(kind, read_object(request.body), self._options.model, self._options.most_tokens)
        except ApiProblem:
            self.counts.ended(kind, "refused")
            raise
        head = AnswerHead(
            kind, f"{PREFIXES[kind]}{uuid.uuid4().hex}", self._options.model, int(time.time()), asked.include_usage
        )
        headers = (("x-request-id", head.id),)
        answering = _Answering(kind, time.perf_counter())
        replies = self._followed(asked, answering)
        if not asked.stream:
            async for reply in replies:
                answering.text.append(reply.text)
            reason = finish_reason(answering.reason)
            return WebAnswer(whole_answer(head, "".join(answering.text), reason, answering.counts()), headers=headers)
        # What goes wrong before the first token is an HTTP status; later it can only be the stream's last event.
        first = await anext(replies)
        return WebStream(_events(head, first, replies, answering), replies.aclose, headers)

    async def _followed(self, asked: OpenAiRequest, answering: _Answering) -> AsyncGenerator[EntryReply, None]:
        """The entry's replies, counted; `ApiProblem` in place of its failures."""
        seed = secrets.randbits(63)
        call = entry_call(asked, ModelName.ENTRY, self._options.default_max_tokens, seed)
        outcome = "abandoned"
        replies = self._endpoint.replies(call, self._options.timeout_s)
        try:
            async for reply in replies:
                if answering.last is None:
                    self.counts.first_token.add(time.perf_counter() - answering.began)
                answering.take(reply)
                if reply.finish_reason == CANCELLED:
                    raise EntryFailure(EntryFault.FAILED, "the server cancelled the request")
                yield reply
            outcome = answering.reason
        except EntryFailure as failure:
            outcome = failure.fault.value
            raise _problem(failure) from None
        except Failure as failure:
            outcome = EntryFault.UNREACHABLE.value
            raise _problem(EntryFailure(EntryFault.UNREACHABLE, failure.message)) from None
        finally:
            await replies.aclose()
            self._count(answering, outcome)

    def _count(self, answering: _Answering, outcome: str) -> None:
        found, counts = answering.counts(), self.counts
        counts.ended(answering.kind, outcome)
        counts.prompt_tokens += found.prompt_tokens
        counts.completion_tokens += found.completion_tokens
        counts.steps += max(0, len(answering.tokens_by_step) - 1)
        counts.drafted += found.drafted
        counts.accepted += found.accepted
        counts.whole.add(time.perf_counter() - answering.began)

    async def _models(self, request: WebRequest) -> WebAnswer:
        return WebAnswer(models(self._options.model, self._created))

    async def _one_model(self, request: WebRequest) -> WebAnswer:
        if request.argument != self._options.model:
            raise ApiProblem(404, f"there is no such model: {self._options.model} is served", code="model_not_found")
        return WebAnswer(one_model(self._options.model, self._created))

    async def _live(self, request: WebRequest) -> WebAnswer:
        return WebAnswer(b'{"status":"live"}')

    async def _describe(self, request: WebRequest) -> WebAnswer:
        return WebAnswer(self._document)

    async def _ready(self, draining: bool) -> WebAnswer:
        """Ready is a token that was really made, at most some seconds ago; whoever asks meanwhile waits for it."""
        if draining:
            raise ApiProblem(503, "the gateway is shutting down", kind="server_error", code="shutting_down")
        async with self._probing:
            if self._probed_at is None or time.monotonic() - self._probed_at >= READY_KEPT_S:
                self._ready_problem = await self._probe()
                self._probed_at = time.monotonic()
        if self._ready_problem is not None:
            raise self._ready_problem
        return WebAnswer(b'{"status":"ready"}')

    async def _probe(self) -> ApiProblem | None:
        call = EntryRequest("Hello", 1).call()
        try:
            async for _ in self._endpoint.replies(call, READY_TIMEOUT_S):
                pass
        except (EntryFailure, Failure) as error:
            return ApiProblem(503, f"no token was made: {error.message}", kind="server_error", code="not_ready")
        return None

    def _metrics(self, state: FrontState) -> bytes:
        counts = self.counts
        outcomes: dict[Labels, float] = {
            (("kind", kind), ("outcome", outcome)): n for (kind, outcome), n in counts.outcomes.items()
        }
        totals = (
            ("prompt_tokens", "Prompt tokens of requests that were answered or begun", counts.prompt_tokens),
            ("generation_tokens", "Tokens that were sent on", counts.completion_tokens),
            ("verification_steps", "Engine steps after the prefill", counts.steps),
            ("spec_decode_num_draft_tokens", "Draft tokens of requests that ended", counts.drafted),
            ("spec_decode_num_accepted_tokens", "Draft tokens that were accepted", counts.accepted),
            ("disconnects", "Clients that went before their answer was whole", state.abandoned),
        )
        flying = "Requests that are being answered"
        first, whole = "Time to the first token", "Time to the end of the answer"
        return page(
            (
                metric("draftyard_gateway_requests_total", "counter", "Requests by how they ended", outcomes),
                metric("draftyard_gateway_requests_in_flight", "gauge", flying, {(): state.in_flight}),
                *(metric(f"draftyard_gateway_{name}_total", "counter", words, {(): n}) for name, words, n in totals),
                histogram("draftyard_gateway_time_to_first_token_seconds", first, counts.first_token),
                histogram("draftyard_gateway_request_seconds", whole, counts.whole),
            )
        )


async def _events(
    head: AnswerHead, first: EntryReply, replies: AsyncIterator[EntryReply], answering: _Answering
) -> AsyncIterator[bytes]:
    """The stream's events; replies that hold text back make none."""
    opening = first_chunk(head) + (text_chunk(head, first.text) if first.text else b"")
    if opening:
        yield opening
    async for reply in replies:
        if reply.text:
            yield text_chunk(head, reply.text)
    yield last_chunks(head, finish_reason(answering.reason), answering.counts())


def _problem(failure: EntryFailure) -> ApiProblem:
    status, kind, code, retry_after_s = PROBLEMS[failure.fault]
    return ApiProblem(status, failure.message, kind=kind, code=code, retry_after_s=retry_after_s)
