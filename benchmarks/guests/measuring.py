"""Processor time of the models' processes while a server answers."""

import os
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc_client

from benchmarks.soak.memory import processes_of

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def stub_of(server_pid: int, model: str) -> int:
    """The process that runs a Python model."""
    for pid in processes_of(server_pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if any(f"/models/{model}/".encode() in word for word in words):
            return pid
    raise RuntimeError(f"no process runs {model}")


@dataclass(frozen=True)
class Spent:
    """What a batch of work took; processor time of each process by its model, and of the server itself."""

    wall_s: float
    processor_s: dict[str, float]


def spent(server_pid: int, models: Sequence[str], work: Callable[[], None]) -> Spent:
    """Do the work and tell what it took."""
    pids = {"server": server_pid, **{model: stub_of(server_pid, model) for model in models}}
    before = {name: processor_s(pid) for name, pid in pids.items()}
    begin = time.monotonic()
    work()
    wall_s = time.monotonic() - begin
    return Spent(wall_s, {name: processor_s(pid) - before[name] for name, pid in pids.items()})


def _tensor(name: str, array: np.ndarray, kind: str) -> grpc_client.InferInput:
    tensor = grpc_client.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor


class Caller:
    """One connection to the server."""

    def __init__(self, url: str) -> None:
        self._client = grpc_client.InferenceServerClient(url)

    def preprocess(self, texts: Sequence[str]) -> None:
        """Each text once."""
        length = _tensor("REQUEST_OUTPUT_LEN", np.array([[16]], dtype=np.int32), "INT32")
        for text in texts:
            query = _tensor("QUERY", np.array([[text.encode("utf-8")]], dtype=np.object_), "BYTES")
            self._client.infer("preprocessing", [query, length])

    def postprocess(self, ids: Sequence[int], times: int) -> None:
        """A whole answer, several times."""
        tokens = _tensor("TOKENS_BATCH", np.array([[ids]], dtype=np.int32), "INT32")
        length = _tensor("SEQUENCE_LENGTH", np.array([[len(ids)]], dtype=np.int32), "INT32")
        for _ in range(times):
            self._client.infer("postprocessing", [tokens, length])

    def stream(self, text: str, max_tokens: int, concurrency: int, requests: int) -> str:
        """Streamed requests, so many at once; returns the text of the last one."""
        done: queue.Queue[str] = queue.Queue()
        texts: dict[str, list[str]] = {}

        def receive(result: grpc_client.InferResult | None, error: Exception | None) -> None:
            if result is None or error is not None:
                raise RuntimeError(f"the server answers with an error: {error}")
            answer = result.get_response()
            texts[answer.id].append("" if not answer.outputs else result.as_numpy("text_output").item().decode("utf-8"))
            if answer.parameters["triton_final_response"].bool_param:
                done.put(answer.id)

        self._client.start_stream(receive)
        inputs = [
            _tensor("text_input", np.array([[text.encode("utf-8")]], dtype=np.object_), "BYTES"),
            _tensor("max_tokens", np.array([[max_tokens]], dtype=np.int32), "INT32"),
            _tensor("stream", np.array([[True]]), "BOOL"),
        ]
        outputs = [grpc_client.InferRequestedOutput("text_output")]
        last = ""
        for number in range(requests + concurrency):
            if number >= concurrency:
                last = done.get(timeout=120)
            if number < requests:
                texts[str(number)] = []
                self._client.async_stream_infer("tensorrt_llm_bls", inputs, outputs=outputs, request_id=str(number))
        self._client.stop_stream()
        return "".join(texts[last])

    def close(self) -> None:
        """End the connection."""
        self._client.close()
