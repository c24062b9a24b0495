"""A gRPC server with the entry's tensors whose every answer, step and fault is known beforehand."""

import json
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
from tests.fakes.triton_entry.script import (
    ACCEPTED_BY_STEP,
    DRAFT_LENGTH,
    Fault,
    Pace,
    Step,
    drawn_ids,
    named_fault,
    planned_ids,
    planned_steps,
    token_text,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc

from draftyard.nouns.policy import Policy
from draftyard.rules.draft_choice import DraftChoice

MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
INPUTS = {
    "text_input": "BYTES",
    "max_tokens": "INT32",
    "stream": "BOOL",
    "num_draft_tokens": "INT32",
    "min_tokens": "INT32",
    "stop_words": "BYTES",
    "exclude_input_in_output": "BOOL",
    "end_id": "INT32",
    "top_k": "INT32",
    "top_p": "FP32",
    "temperature": "FP32",
    "presence_penalty": "FP32",
    "frequency_penalty": "FP32",
    "repetition_penalty": "FP32",
    "seed": "UINT64",
}
NUMPY_TYPES = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}
MAX_INPUT_WORDS = 256
STRAGGLER_S = 4.5


class BadRequest(Exception):
    """What the entry answers with."""


@dataclass(frozen=True)
class Asked:
    """One request, read and checked."""

    text: str
    max_tokens: int
    stream: bool
    draft_tokens: int | None
    stop_words: tuple[str, ...]
    values: dict[str, list]
    seed: int | None = None


@dataclass
class Counters:
    """What the server did."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    requests: int = 0
    in_flight: int = 0
    tokens: int = 0
    sent_tokens: int = 0
    asked: list[dict[str, list]] = field(default_factory=list)
    most_in_flight: int = 0
    repeats: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    draft_lengths: list[int] = field(default_factory=list)
    turn: threading.Lock = field(default_factory=threading.Lock)


class Entry(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(
        self, fault: Fault, pace: Pace, counters: Counters, not_ready: str = "", policy: Path | None = None
    ) -> None:
        self._policy = policy
        self._fault = fault
        self._pace = pace
        self._counters = counters
        self._not_ready = not_ready

    def ServerMetadata(self, request, context):
        return service_pb2.ServerMetadataResponse(name="scripted", version="1.0")

    def RepositoryIndex(self, request, context):
        states = {name: "UNAVAILABLE" if name == self._not_ready else "READY" for name in MODELS}
        entries = [
            service_pb2.RepositoryIndexResponse.ModelIndex(name=name, state=state) for name, state in states.items()
        ]
        return service_pb2.RepositoryIndexResponse(models=entries)

    def ModelConfig(self, request, context):
        answer = service_pb2.ModelConfigResponse()
        answer.config.name = request.name
        answer.config.max_batch_size = 8
        names = ["text_output"] if request.name == "ensemble" else ["text_output", "finish_reason"]
        for name in names:
            answer.config.output.add(name=name)
        return answer

    def ModelStreamInfer(self, request_iterator, context):
        for request in request_iterator:
            try:
                asked = read_request(request, self._fault)
            except BadRequest as error:
                yield failed(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
                continue
            self._counters.asked.append(asked.values)
            fault = named_fault(asked.text) or self._fault
            with self._flying(context, fault):
                yield from self._answer(asked, fault, request.model_name == "ensemble", context)

    @contextmanager
    def _flying(self, context, fault: Fault):
        with self._counters.lock:
            self._counters.requests += 1
            self._counters.in_flight += 1
            self._counters.most_in_flight = max(self._counters.most_in_flight, self._counters.in_flight)
        try:
            yield
        finally:
            # gRPC drops a cancelled stream wherever it stands; work that ignores this keeps its place all the same.
            if fault is Fault.IGNORES_CANCEL and not context.is_active():
                time.sleep(STRAGGLER_S)
            with self._counters.lock:
                self._counters.in_flight -= 1

    def _answer(self, asked: Asked, fault: Fault, ensemble: bool, context):
        if fault is Fault.REFUSED:
            context.abort(grpc.StatusCode.UNAVAILABLE, "no place")
        if fault in (Fault.ERROR_FIRST, Fault.QUEUE_FULL):
            full = fault is Fault.QUEUE_FULL
            code = grpc.StatusCode.UNAVAILABLE if full else grpc.StatusCode.INTERNAL
            yield failed(context, code, "Exceeds maximum queue size" if full else "engine failed")
            return
        if fault is Fault.EMPTY:
            return
        if fault is Fault.REFUSED_TWICE and self._counters.requests % 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "no place")
        speculate = self._draft_tokens(asked) != 0 and fault is not Fault.NEVER_DRAFTS
        speculate = speculate or fault is Fault.DRAFTS_WHEN_OFF
        seen = self._count(asked, speculate)
        steps = planned_steps(self._ids(asked, fault, speculate, seen), speculate, self._accepted(fault))
        answer = Answer(asked, fault, steps, ensemble)
        turn = self._counters.turn if self._pace.serial else nullcontext()
        with turn:
            yield from self._stream(answer, fault, speculate, seen, context)

    def _stream(self, answer, fault: Fault, speculate: bool, seen: int, context):
        for number, step in enumerate(answer.steps):
            time.sleep(self._step_s(speculate) if number else self._prefill_s(seen))
            if not context.is_active():
                return
            if number == 3 and fault in (Fault.RESET, Fault.STALL, Fault.ERROR_MIDWAY):
                yield from broken(fault, context)
                return
            self._counters.sent_tokens += len(step.token_ids)
            if answer.take(step):
                yield answer.response(False)
            if answer.over:
                break
        yield answer.response(True)

    def _draft_tokens(self, asked: Asked) -> int:
        """As asked; else by the policy file, read at each request, for the load of the moment."""
        found = asked.draft_tokens
        if found is None and self._policy is not None:
            choice = DraftChoice(Policy.model_validate_json(self._policy.read_text()))
            choice.moved(self._counters.in_flight)
            found = choice.draft_tokens(DRAFT_LENGTH)
        found = DRAFT_LENGTH if found is None else found
        with self._counters.lock:
            self._counters.draft_lengths.append(found)
        return found

    def _count(self, asked: Asked, speculate: bool) -> int:
        """How often the text was asked before in this arm."""
        with self._counters.lock:
            key = f"{speculate}/{asked.text}"
            self._counters.texts.append(asked.text)
            self._counters.repeats[key] = self._counters.repeats.get(key, 0) + 1
            return self._counters.repeats[key] - 1

    def _step_s(self, speculate: bool) -> float:
        if not speculate:
            return self._pace.plain_step_s
        return self._pace.speculative_step_s + self._pace.per_request_s * (self._counters.in_flight - 1)

    def _prefill_s(self, seen: int) -> float:
        return self._pace.prefill_s if not seen or self._pace.again_s is None else self._pace.again_s

    def _accepted(self, fault: Fault) -> tuple[int, ...]:
        if fault is Fault.NEVER_ACCEPTS:
            return (0,)
        if fault is Fault.ACCEPTS_LESS_TOGETHER and self._counters.in_flight > 1:
            return (0, 0, 1)
        return ACCEPTED_BY_STEP

    def _ids(self, asked: Asked, fault: Fault, speculate: bool, seen: int) -> tuple[int, ...]:
        ids = list(planned_ids(asked.text, asked.max_tokens))
        if asked.seed is not None:
            skewed = fault is Fault.DRAWS_OTHERWISE and speculate
            ids = list(drawn_ids(asked.text, asked.max_tokens, asked.seed, skewed))
        if fault is Fault.KEEPS_STATE and speculate and seen and len(ids) > 5:
            ids[5] = (ids[5] + 1) % 10
        if fault is Fault.STREAMS_OTHER_TEXT and asked.stream:
            ids[-1] = (ids[-1] + 1) % 10
        if fault is Fault.WRONG_TOKEN and speculate:
            with self._counters.lock:
                for index in range(len(ids)):
                    self._counters.tokens += 1
                    if self._counters.tokens % 200 == 0:
                        ids[index] = (ids[index] + 1) % 10
        return tuple(ids)


def failed(context, code: grpc.StatusCode, message: str):
    """An error as Triton gives it: a text, or the stream's status for a client that asks for that."""
    if ("triton_grpc_error", "true") in [(key, value) for key, value in context.invocation_metadata()]:
        context.abort(code, message)
    return service_pb2.ModelStreamInferResponse(error_message=message)


def broken(fault: Fault, context):
    if fault is Fault.ERROR_MIDWAY:
        yield failed(context, grpc.StatusCode.INTERNAL, "engine failed in mid-stream")
    elif fault is Fault.RESET:
        context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
    else:
        while context.is_active():
            time.sleep(0.01)


class Answer:
    """What has been said so far and what comes next."""

    def __init__(self, asked: Asked, fault: Fault, steps: tuple[Step, ...], ensemble: bool) -> None:
        self.steps = steps
        self.over = False
        self._asked = asked
        self._fault = fault
        self._ensemble = ensemble
        self._count = 0
        self._drafted = 0
        self._accepted = 0
        self._ids: list[int] = []
        self._text = ""
        self._reason = "length"

    def take(self, step: Step) -> bool:
        """Add a step; True when its text and tokens go out at once."""
        self._drafted += step.drafted
        self._accepted += step.accepted
        for token_id in step.token_ids:
            piece = token_text(token_id, self._asked.text, self._count)
            if piece in self._asked.stop_words and self._fault is not Fault.LEAKS_STOP_WORD:
                self._reason, self.over = "stop_words", True
                return False
            if self._fault is Fault.CUTS_CHARACTERS and not piece.isascii() and self._asked.stream:
                piece = " \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
            self._ids.append(token_id)
            self._text += piece
            self._count += 1
        self.over = self._count >= self._asked.max_tokens
        return self._asked.stream and not self.over

    def response(self, final: bool):
        """A response with what was not sent yet; the last one has the end mark and the totals."""
        count = self._count + (1 if self._fault is Fault.WRONG_COUNT else 0)
        tensors = [string_tensor("text_output", self._text)]
        if not self._ensemble:
            tensors.append(int_tensor("output_token_ids", self._ids))
            tensors.append(int_tensor("num_output_tokens", [count]))
            tensors.append(int_tensor("num_input_tokens", [len(self._asked.text.split())]))
        if final and not self._ensemble:
            if self._fault is not Fault.NO_END_MARK:
                tensors.append(string_tensor("finish_reason", self._reason))
            tensors.append(int_tensor("total_draft_tokens", [self._drafted]))
            accepted = self._drafted if self._fault is Fault.COUNTS_REJECTED else self._accepted
            tensors.append(int_tensor("total_accepted_draft_tokens", [accepted]))
        self._text, self._ids = "", []
        return to_response(tensors, final)


def read_request(request, fault: Fault) -> Asked:
    """Tensors and parameters, checked as the entry checks them."""
    values: dict[str, list] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if fault is not Fault.ACCEPTS_ANYTHING and INPUTS.get(tensor.name) != tensor.datatype:
            raise BadRequest(f"unexpected input {tensor.name} of type {tensor.datatype}")
        values[tensor.name] = read_tensor(tensor.datatype, raw)
    parameters = {name: parameter.bool_param for name, parameter in request.parameters.items()}
    limit = values.get("max_tokens", [None])[0]
    text = values["text_input"][0]
    if fault is Fault.ACCEPTS_ANYTHING:
        limit = max(1, int(limit or 1))
    elif limit is None or limit < 1:
        raise BadRequest(f"max_tokens is {limit}: send at least 1")
    elif not text or len(text.split()) > MAX_INPUT_WORDS:
        raise BadRequest("the prompt is empty or too long")
    elif set(parameters) - {"chat"}:
        raise BadRequest("unknown parameter")
    if parameters.get("chat") and fault is not Fault.ACCEPTS_ANYTHING:
        try:
            text = json.loads(text)[-1]["content"]
        except ValueError:
            raise BadRequest("text_input holds no messages") from None
    draft_tokens = values.get("num_draft_tokens", [None])[0]
    stream = bool(values.get("stream", [False])[0])
    seed = values["seed"][0] if "temperature" in values else None
    return Asked(text, int(limit), stream, draft_tokens, tuple(values.get("stop_words", ())), values, seed)


def read_tensor(datatype: str, raw: bytes) -> list:
    if datatype != "BYTES":
        return np.frombuffer(raw, NUMPY_TYPES[datatype]).tolist()
    texts, offset = [], 0
    while offset < len(raw):
        (length,) = struct.unpack_from("<I", raw, offset)
        texts.append(raw[offset + 4 : offset + 4 + length].decode())
        offset += 4 + length
    return texts


def string_tensor(name: str, text: str):
    data = text.encode()
    return name, "BYTES", [1], struct.pack("<I", len(data)) + data


def int_tensor(name: str, values: list[int]):
    return name, "INT32", [len(values)], np.array(values, np.int32).tobytes()


def to_response(tensors, final: bool):
    answer = service_pb2.ModelStreamInferResponse()
    answer.infer_response.parameters["triton_final_response"].bool_param = final
    for name, datatype, shape, raw in tensors:
        answer.infer_response.outputs.add(name=name, datatype=datatype, shape=shape)
        answer.infer_response.raw_output_contents.append(raw)
    return answer


def metrics_server(counters: Counters, with_gauge: bool) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lines = ["# HELP nv_up always 1", "nv_up 1.0"]
            if with_gauge:
                lines.append(f'draftyard_requests_in_flight{{model="tensorrt_llm_bls"}} {counters.in_flight}.0')
            body = "\n".join(lines).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@dataclass(frozen=True)
class Running:
    """A server that listens, and what it counts."""

    grpc_url: str
    metrics_url: str
    counters: Counters


@contextmanager
def scripted_entry(
    fault: Fault = Fault.NONE,
    pace: Pace | None = None,
    with_gauge: bool = True,
    not_ready: str = "",
    policy: Path | None = None,
):
    """The fake on free loopback ports, gone at the end; it follows a `policy` file as the entry does."""
    counters = Counters()
    server = grpc.server(ThreadPoolExecutor(max_workers=32))
    entry = Entry(fault, pace or Pace(), counters, not_ready, policy)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(entry, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    http = metrics_server(counters, with_gauge)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield Running(f"127.0.0.1:{port}", f"127.0.0.1:{http.server_port}", counters)
    finally:
        server.stop(0).wait()
        http.shutdown()
        http.server_close()
        thread.join()
