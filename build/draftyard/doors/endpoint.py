"""The client of a Triton server: one stream a request, read into a token timeline; it never retries."""

import asyncio
import struct
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeAlias

import grpc
import numpy as np
import numpy.typing as npt
import tritonclient.grpc.aio as triton_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from draftyard.nouns.entry_reply import EntryFailure, EntryFault, EntryReply
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.timeline import CountSource, EndMark, EntryCall, InputTensor, Outcome, Timeline, TokenEvent

# Retries would hide refusals inside latencies; a message may hold a long prompt.
CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)
NUMPY_TYPES = {"INT32": np.int32, "INT64": np.int64, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}
REFUSALS = ("maximum queue size", "queue is full", "unavailable", "try again later")
LATE = "request timed out"
# An error is a text and nothing else: asked for its status by the header triton_grpc_error, the server of Triton 24.10
# aborts when errors meet many cancelled streams. What is none of these, and comes first, is a refusal of the request.
FAULTY = ("failed", "ended early", "sent nothing", "in mid-stream", "shutting down", "exception", "internal")
FAULTS = {
    grpc.StatusCode.INVALID_ARGUMENT: EntryFault.BAD_REQUEST,
    grpc.StatusCode.RESOURCE_EXHAUSTED: EntryFault.BUSY,
    grpc.StatusCode.UNAVAILABLE: EntryFault.UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: EntryFault.TIMEOUT,
}

Array: TypeAlias = "npt.NDArray[np.generic]"
EventWatcher: TypeAlias = Callable[[TokenEvent], bool]


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What answers: name and version, as the server says."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a request to a model must look like: whether it has a batch dimension, and its outputs."""

    batched: bool
    outputs: tuple[str, ...]


@dataclass(slots=True)
class _Reading:
    """What a stream has brought so far."""

    started: float
    events: list[TokenEvent] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    server_count: int = 0
    counted: bool = False
    totals: dict[str, int] = field(default_factory=dict)
    finish_reason: str = ""
    final: bool = False

    def take(self, outputs: Mapping[str, "Array"], final: bool) -> TokenEvent:
        """Add one response; counts are read from every response, with text or without."""
        now = time.perf_counter() - self.started
        if "output_token_ids" in outputs:
            self.token_ids.extend(int(token) for token in outputs["output_token_ids"].reshape(-1))
        if "num_output_tokens" in outputs:
            self.server_count = int(outputs["num_output_tokens"].reshape(-1)[0])
            self.counted = True
        for name in ("num_input_tokens", "total_draft_tokens", "total_accepted_draft_tokens"):
            if name in outputs:
                self.totals[name] = int(outputs[name].reshape(-1)[0])
        reason = _text(outputs.get("finish_reason"))
        self.finish_reason = reason or self.finish_reason
        self.final = self.final or final
        tokens = len(self.token_ids) if self.token_ids else self.server_count
        event = TokenEvent(now, tokens, _text(outputs.get("text_output")))
        self.events.append(event)
        return event


class Endpoint:
    """An open connection to one server; an async context manager. `grpc_url` is host:port."""

    def __init__(self, grpc_url: str, timeout_s: float = 120.0) -> None:
        self._url = grpc_url
        self._timeout_s = timeout_s
        self._shapes: dict[str, ModelShape] = {}

    async def __aenter__(self) -> "Endpoint":
        self._client = triton_grpc.InferenceServerClient(self._url, channel_args=list(CHANNEL_OPTIONS))
        self._channel = grpc.aio.insecure_channel(self._url, options=CHANNEL_OPTIONS)
        self._infer = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelStreamInfer
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
        await self._channel.close()

    async def identity(self) -> ServerIdentity:
        """Name and version of the server; Failure when it does not answer."""
        try:
            found = await self._client.get_server_metadata(client_timeout=10.0)
        except InferenceServerException as error:
            raise self._unreachable(error) from error
        return ServerIdentity(str(found.name), str(found.version))

    async def ready_models(self) -> dict[str, bool]:
        """Every model of the repository by name, and whether it is ready."""
        try:
            index = await self._client.get_model_repository_index(client_timeout=10.0)
        except InferenceServerException as error:
            raise self._unreachable(error) from error
        return {str(model.name): str(model.state) == "READY" for model in index.models}

    async def shape(self, model: str) -> ModelShape:
        """How a model wants its tensors; read once from the server."""
        if model not in self._shapes:
            try:
                config = (await self._client.get_model_config(model, client_timeout=10.0)).config
            except InferenceServerException as error:
                raise self._unreachable(error) from error
            outputs = tuple(str(output.name) for output in config.output)
            self._shapes[model] = ModelShape(config.max_batch_size > 0, outputs)
        return self._shapes[model]

    async def generate(
        self, call: EntryCall, watch: EventWatcher | None = None, timeout_s: float | None = None
    ) -> Timeline:
        """Send one request and read its stream to the end; faults become outcomes, never exceptions.

        `watch` sees each event as it arrives; when it returns False the stream is closed, which cancels the request.
        A stream that outlives `timeout_s` is closed, so that it leaves no load behind.
        """
        shape = await self.shape(call.model)
        reading = _Reading(time.perf_counter())
        stream = self._client.stream_infer(_one_request(call, shape))
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            ended = await asyncio.wait_for(_read(stream, reading, watch), limit_s)
        except asyncio.TimeoutError:
            ended = (Outcome.TIMEOUT, f"no end within {limit_s:g} s")
        finally:
            stream.cancel()
        return _timeline(reading, shape, *ended)

    async def replies(self, call: EntryCall, timeout_s: float) -> AsyncGenerator[EntryReply, None]:
        """Send one request and yield what comes, as it comes; the last reply has a finish reason.

        `EntryFailure` when the entry refuses, fails, or ends without its end mark. Closing the generator closes the
        stream, which cancels the request. The messages are read as they are, without the client library's results.
        """
        shape = await self.shape(call.model)
        stream = self._infer(iter((_message(call, shape.batched),)), timeout=timeout_s)
        last: EntryReply | None = None
        try:
            async for answer in stream:
                if answer.error_message:
                    fault = _fault_of_words(answer.error_message)
                    refused = last is None and fault is EntryFault.FAILED and not _faulty(answer.error_message)
                    raise EntryFailure(EntryFault.BAD_REQUEST if refused else fault, str(answer.error_message))
                if answer.infer_response.outputs:
                    last = _reply(answer.infer_response)
                    yield last
        except grpc.aio.AioRpcError as error:
            raise _entry_failure(error) from error
        finally:
            stream.cancel()
        if last is None or not last.finish_reason:
            raise EntryFailure(EntryFault.FAILED, "the entry's stream ended without its end mark")

    async def prompt_ids(self, call: EntryCall) -> tuple[int, ...]:
        """The token ids that the server's preprocessing makes of a prompt; Failure when it refuses or is not there."""
        shape = await self.shape(call.model)
        inputs = [_infer_input(tensor, shape.batched) for tensor in call.tensors]
        try:
            found = await self._client.infer(call.model, inputs, parameters=dict(call.parameters), client_timeout=10.0)
        except InferenceServerException as error:
            raise self._unreachable(error) from error
        length = int(found.as_numpy("REQUEST_INPUT_LEN").reshape(-1)[0])
        return tuple(int(token) for token in found.as_numpy("INPUT_ID").reshape(-1)[:length])

    def _unreachable(self, error: InferenceServerException) -> Failure:
        return Failure(
            f"the server at {self._url} does not answer: {error.message()}",
            "start it with `draftyard serve`, or check the address",
            ExitCode.ENVIRONMENT,
        )


def _message(call: EntryCall, batched: bool) -> "service_pb2.ModelInferRequest":
    message = service_pb2.ModelInferRequest(model_name=call.model)
    for name, value in call.parameters:
        kind = "string_param" if isinstance(value, str) else "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(message.parameters[name], kind, value)
    for tensor in call.tensors:
        shape = [1, len(tensor.values)] if batched else [len(tensor.values)]
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        message.raw_input_contents.append(_raw(tensor))
    return message


def _raw(tensor: InputTensor) -> bytes:
    if tensor.datatype != "BYTES":
        return np.array(tensor.values, dtype=NUMPY_TYPES[tensor.datatype]).tobytes()
    texts = (str(value).encode() for value in tensor.values)
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _reply(response: "service_pb2.ModelInferResponse") -> EntryReply:
    """The entry's response as a value, straight from its bytes (KServe v2: little-endian, texts with their length)."""
    found = {output.name: raw for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)}
    ids = found.get("output_token_ids", b"")
    return EntryReply(
        text=_first_text(found.get("text_output")),
        token_ids=struct.unpack(f"<{len(ids) // 4}i", ids),
        finish_reason=_first_text(found.get("finish_reason")),
        input_tokens=_first_number(found.get("num_input_tokens")),
        drafted=_first_number(found.get("total_draft_tokens")),
        accepted=_first_number(found.get("total_accepted_draft_tokens")),
    )


def _first_text(raw: bytes | None) -> str:
    return "" if not raw else raw[4 : 4 + int(struct.unpack_from("<I", raw)[0])].decode("utf-8", "replace")


def _first_number(raw: bytes | None) -> int | None:
    return None if not raw else int(struct.unpack_from("<i", raw)[0])


def _fault_of_words(message: str) -> EntryFault:
    """What a message says where no code does: the codes of errors are lost between models of a server."""
    if any(words in message.lower() for words in REFUSALS):
        return EntryFault.BUSY
    return EntryFault.TIMEOUT if LATE in message else EntryFault.FAILED


def _faulty(message: str) -> bool:
    return any(words in message.lower() for words in FAULTY)


def _entry_failure(error: grpc.aio.AioRpcError) -> EntryFailure:
    message = str(error.details())
    fault, said = FAULTS.get(error.code(), EntryFault.FAILED), _fault_of_words(message)
    if fault is EntryFault.FAILED or (fault is EntryFault.UNREACHABLE and said is EntryFault.BUSY):
        fault = said
    return EntryFailure(fault, message)


async def _one_request(call: EntryCall, shape: ModelShape) -> AsyncIterator[dict[str, object]]:
    inputs = [_infer_input(tensor, shape.batched) for tensor in call.tensors]
    yield {"model_name": call.model, "inputs": inputs, "parameters": dict(call.parameters)}


def _infer_input(tensor: InputTensor, batched: bool) -> triton_grpc.InferInput:
    if tensor.datatype == "BYTES":
        array = np.array([str(value).encode() for value in tensor.values], dtype=np.object_)
    else:
        array = np.array(tensor.values, dtype=NUMPY_TYPES[tensor.datatype])
    if batched:
        array = array.reshape(1, -1)
    sent = triton_grpc.InferInput(tensor.name, list(array.shape), tensor.datatype)
    sent.set_data_from_numpy(array)
    return sent


async def _read(
    stream: AsyncIterator[tuple[triton_grpc.InferResult | None, InferenceServerException | None]],
    reading: _Reading,
    watch: EventWatcher | None,
) -> tuple[Outcome, str]:
    """Read to the end; the outcome here only says how the stream ended, not yet whether the answer is whole."""
    try:
        async for result, error in stream:
            if error is not None:
                return _refusal_or_error(str(error.message()), reading), str(error.message())
            if result is None:
                continue
            response = result.get_response()
            flag = response.parameters.get("triton_final_response")
            outputs = {output.name: result.as_numpy(output.name) for output in response.outputs}
            if not outputs:
                reading.final = reading.final or bool(flag and flag.bool_param)
                continue
            event = reading.take(outputs, bool(flag and flag.bool_param))
            if watch is not None and not watch(event):
                return Outcome.CANCELLED, "closed by the client"
    except grpc.RpcError as error:
        return _broken(error, reading)
    return Outcome.SUCCESS, ""


def _refusal_or_error(message: str, reading: _Reading) -> Outcome:
    refused = not reading.events and any(words in message.lower() for words in REFUSALS)
    return Outcome.REFUSED if refused else Outcome.ERROR


def _broken(error: grpc.RpcError, reading: _Reading) -> tuple[Outcome, str]:
    code = error.code() if isinstance(error, grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
    details = str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)
    message = f"{code.name}: {details}"
    if reading.events:
        return Outcome.RESET, message
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return Outcome.REFUSED, message
    return Outcome.ERROR, message


def _timeline(reading: _Reading, shape: ModelShape, outcome: Outcome, error: str) -> Timeline:
    """Success needs the end mark and at least one token; everything else is named after what it lacks."""
    mark = EndMark.MISSING
    if reading.finish_reason:
        mark = EndMark.FINISH_REASON
    elif "finish_reason" not in shape.outputs and reading.final:
        mark = EndMark.FINAL_FLAG
    source = CountSource.NONE
    if reading.token_ids or reading.counted:
        source = CountSource.TOKEN_IDS if reading.token_ids else CountSource.SERVER_COUNT
    tokens = reading.events[-1].tokens if reading.events else 0
    if outcome is Outcome.SUCCESS:
        blank = tokens == 0 and (source is not CountSource.NONE or not any(event.text for event in reading.events))
        if mark is EndMark.MISSING and reading.events and not blank:
            outcome, error = Outcome.TRUNCATED, "the stream ended without its end mark"
        elif blank:
            outcome, error = Outcome.EMPTY, "no output token came"
    both = bool(reading.token_ids) and reading.counted
    return Timeline(
        outcome=outcome,
        events=tuple(reading.events),
        end_s=time.perf_counter() - reading.started,
        token_ids=tuple(reading.token_ids),
        finish_reason=reading.finish_reason,
        end_mark=mark,
        count_source=source,
        count_mismatch=abs(len(reading.token_ids) - reading.server_count) if both else 0,
        input_tokens=reading.totals.get("num_input_tokens"),
        drafted=reading.totals.get("total_draft_tokens"),
        accepted=reading.totals.get("total_accepted_draft_tokens"),
        error=error,
    )


def _text(array: "Array | None") -> str:
    if array is None or array.size == 0:
        return ""
    value = array.reshape(-1)[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def fetch_metrics(metrics_url: str, timeout_s: float = 5.0) -> dict[str, float]:
    """Prometheus metrics of the server at host:port, summed over labels, by name; {} when it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{metrics_url}/metrics", timeout=timeout_s) as answer:
            text = answer.read().decode("utf-8")
    except (urllib.error.URLError, OSError):
        return {}
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals
