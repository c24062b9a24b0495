"""Prints and writes the CPU time that the gateway takes per streamed token, beside reading the same streams over gRPC.

Run from the repository with `PYTHONPATH=build:. python -m benchmarks.gateway`. A scripted entry in a process of its own
sends the same answers to all arms, several tokens a response as an engine that speculates does; CPU time is that of the
reading process alone, so that a busy machine disturbs little. The arms take turns.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from draftyard.doors.endpoint import Endpoint
from draftyard.nouns.timeline import EntryRequest

TOKENS = 400
# Tokens and responses of an answer, or of several.
Counts: TypeAlias = tuple[int, int]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def running(*words: str) -> Iterator[tuple[int, str]]:
    """A program of this project; yields its process and the last word of its first line."""
    argv = [sys.executable, "-m", *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().decode().split()[-1]
        finally:
            process.stdin.close()
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


async def read_replies(endpoint: Endpoint) -> Counts:
    """One answer over gRPC, as the gateway reads it: its tokens and responses."""
    tokens = responses = 0
    async for reply in endpoint.replies(EntryRequest("x", TOKENS).call(), 60):
        tokens += len(reply.token_ids)
        responses += 1
    return tokens, responses


async def read_timeline(endpoint: Endpoint) -> Counts:
    """One answer over gRPC, by the client library's own reader."""
    timeline = await endpoint.generate(EntryRequest("x", TOKENS).call())
    return timeline.tokens, len(timeline.events)


async def read_http(host: str, port: int) -> Counts:
    """One answer from the gateway; the client does next to nothing with it."""
    body = json.dumps({"model": "tensorrt_llm_bls", "prompt": "x", "max_tokens": TOKENS, "stream": True}).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read(-1)
    writer.close()
    assert b"data: [DONE]" in answer
    return TOKENS, answer.count(b"data: {")


async def grpc_arm(grpc_url: str, reader: str, requests: int, concurrency: int) -> dict[str, float]:
    """CPU microseconds of this process per token and per response, reading over gRPC."""
    read = {"replies": read_replies, "timeline": read_timeline}[reader]
    async with Endpoint(grpc_url) as endpoint:
        await read(endpoint)
        began = time.process_time()
        counts = await in_turns(lambda: read(endpoint), requests, concurrency)
        return per_token(time.process_time() - began, counts)


async def gateway_arm(pid: int, url: str, requests: int, concurrency: int) -> dict[str, float]:
    """CPU microseconds of the gateway's process per token and per event."""
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    await read_http(host, int(port))
    began = cpu_s(pid)
    counts = await in_turns(lambda: read_http(host, int(port)), requests, concurrency)
    return per_token(cpu_s(pid) - began, counts)


async def in_turns(one: Callable[[], Awaitable[Counts]], requests: int, concurrency: int) -> list[Counts]:
    """So many answers, so many at once."""
    gate = asyncio.Semaphore(concurrency)

    async def admitted() -> Counts:
        async with gate:
            return await one()

    return list(await asyncio.gather(*(admitted() for _ in range(requests))))


def per_token(seconds: float, counts: list[Counts]) -> dict[str, float]:
    """Microseconds per token and per response."""
    tokens, responses = (sum(column) for column in zip(*counts, strict=True))
    return {"us_per_token": seconds / tokens * 1e6, "us_per_response": seconds / responses * 1e6}


def measure(requests: int, concurrency: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds, each arm once a round."""
    found: dict[str, list[dict[str, float]]] = {}
    words = ("draftyard", "gateway", "--port", "0", "--url")
    with running("benchmarks.gateway.entry") as (_, grpc_url), running(*words, grpc_url) as (pid, url):
        for _ in range(rounds):
            arms = {
                "gRPC, as the gateway reads": grpc_arm(grpc_url, "replies", requests, concurrency),
                "gRPC, the client library": grpc_arm(grpc_url, "timeline", requests, concurrency),
                "gateway": gateway_arm(pid, url, requests, concurrency),
            }
            for name, arm in arms.items():
                found.setdefault(name, []).append(asyncio.run(arm))
    return {
        name: {figure: statistics.median(one[figure] for one in taken) for figure in taken[0]}
        for name, taken in found.items()
    }


def main() -> None:
    """Measure at each concurrency, print, and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    table: dict[str, dict[str, dict[str, float]]] = {}
    for text in options.concurrency.split(","):
        table[text] = measure(options.requests, int(text), options.rounds)
        print(f"{text} at a time: CPU microseconds per token, per response")
        for name, figures in table[text].items():
            print(f"  {name:28}{figures['us_per_token']:8.1f}{figures['us_per_response']:8.1f}")
    if options.output is not None:
        found = {"machine": platform.processor() or platform.machine(), "concurrency": table}
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
