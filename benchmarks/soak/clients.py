"""Clients of the entry that read to the end, cancel, close their connection or hang up."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

MODEL = "tensorrt_llm_bls"


@dataclass(frozen=True)
class Entry:
    """Where the server listens."""

    http_url: str
    grpc_url: str
    metrics_url: str

    def metric(self, name: str) -> float:
        """Sum of all samples of a metric."""
        with urllib.request.urlopen(f"http://{self.metrics_url}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


@dataclass(frozen=True)
class Ask:
    """One request; `draft_tokens` None leaves the draft length to the server."""

    prompt: str
    max_tokens: int
    draft_tokens: int | None
    stream: bool = True


@dataclass
class Got:
    """What came of a request so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: str = ""
    error: str = ""


def _request(ask: Ask, request_id: str) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=MODEL, id=request_id)
    values: list[tuple[str, str, bytes]] = [
        ("text_input", "BYTES", _text(ask.prompt)),
        ("max_tokens", "INT32", np.int32(ask.max_tokens).tobytes()),
        ("stream", "BOOL", np.bool_(ask.stream).tobytes()),
    ]
    if ask.draft_tokens is not None:
        values.append(("num_draft_tokens", "INT32", np.int32(ask.draft_tokens).tobytes()))
    for name, kind, raw in values:
        request.inputs.add(name=name, datatype=kind, shape=[1, 1])
        request.raw_input_contents.append(raw)
    return request


def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return len(raw).to_bytes(4, "little") + raw


def _take(answer: service_pb2.ModelStreamInferResponse, got: Got) -> None:
    if answer.error_message:
        got.error = answer.error_message
        return
    response = answer.infer_response
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.name == "text_output":
            got.text += raw[4:].decode("utf-8")  # strict: half a character would raise
        elif output.name == "output_token_ids":
            got.token_ids.extend(np.frombuffer(raw, dtype=np.int32).tolist())
        elif output.name == "finish_reason":
            got.finish = raw[4:].decode("utf-8")


async def read_stream(channel: grpc.aio.Channel, ask: Ask, request_id: str, events: int | None = None) -> Got:
    """Read to the end, or cancel after so many events."""
    got, count = Got(), 0
    call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(_one(_request(ask, request_id)))
    async for answer in call:
        _take(answer, got)
        count += 1
        if got.finish or got.error or count == events:
            break
    call.cancel()
    return got


async def _one(
    request: service_pb2.ModelInferRequest,
) -> AsyncIterator[service_pb2.ModelInferRequest]:
    """The request, and then nothing: the call stays open until it is cancelled, as a client's stream does."""
    yield request
    await asyncio.sleep(3600)


async def hang_up(entry: Entry, ask: Ask, events: int) -> Got:
    """Over HTTP, and gone without a word after so many events."""
    host, port = entry.http_url.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    values = {"text_input": ask.prompt, "max_tokens": ask.max_tokens, "stream": True}
    body = json.dumps(values).encode()
    head = f"POST /v2/models/{MODEL}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    got = Got()
    while events > 0:
        line = await reader.readline()
        if not line:
            break
        if line.startswith(b"data: "):
            events -= 1
            found = json.loads(line[6:].decode("utf-8"))
            got.error = str(found.get("error", ""))
            got.text += str(found.get("text_output", ""))
            if got.error or "finish_reason" in found:
                break
    writer.transport.abort()
    return got


async def whole(entry: Entry, ask: Ask, request_id: str) -> Got:
    """One request over a connection of its own."""
    async with grpc.aio.insecure_channel(entry.grpc_url) as channel:
        return await read_stream(channel, ask, request_id)
