"""A repository of the guests around the scripted engine, and a plain client for it."""

import json
import queue
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc_client
from tests.guests.tokenizers_made import write_directory
from tokenizers import Tokenizer

from draftyard.doors.repository_files import write_model_config
from draftyard.doors.shipped_files import copy_guest
from draftyard.doors.triton import RunningServer, embedded_server
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.repository import LogitsType, RepositoryPlan
from draftyard.rules.triton_repository import draw_repository

FAKE_ENGINE = Path(__file__).resolve().parents[1] / "fakes" / "triton_engine" / "1"
NUMBERS = {np.int32: "INT32", np.float32: "FP32", np.uint64: "UINT64", np.bool_: "BOOL"}


def plan(tokenizer: Tokenizer, draft: bool = False) -> RepositoryPlan:
    """What a recipe for a small chat model would say, with a draft that is an engine of its own where that is asked."""
    return RepositoryPlan(
        lane=Lane.TENSORRT if draft else Lane.REFERENCE,
        speculator=SpeculatorKind.DRAFT_TARGET if draft else SpeculatorKind.NGRAM,
        draft_ranks=1 if draft else 0,
        max_draft_len=4,
        max_batch_size=8,
        max_input_len=512,
        max_seq_len=1024,
        kv_cache_tokens=8192,
        max_queue_size=64,
        default_timeout_s=30.0,
        end_ids=(tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")),
        vocab_size=tokenizer.get_vocab_size(),
        logits_type=LogitsType.FLOAT32,
        guests_digest="0" * 64,
    )


def write_repository(
    root: Path,
    tokenizer: Tokenizer,
    script: Mapping[str, object],
    entry: Mapping[str, str] | None = None,
    draft: bool = False,
) -> None:
    """A generated repository in `root`, and in `root`/backends the scripted engine in the place of every engine.

    `script` is the engines' default script, `entry` holds parameters of the entry to change.
    """
    write_directory(tokenizer, root / "tokenizer")
    changes = {
        "tensorrt_llm": {"script": json.dumps(script)},
        "tensorrt_llm_draft": {"script": json.dumps(script), "role": "draft"},
        "tensorrt_llm_bls": dict(entry or {}),
    }
    for config in draw_repository(plan(tokenizer, draft)).models:
        if config.backend == "python":
            copy_guest(config.name, root / "models" / config.name / "1")
        parameters = {**dict(config.parameters), **changes.get(config.name, {})}
        write_model_config(root / "models", replace(config, parameters=tuple(sorted(parameters.items()))))
    shutil.copytree(FAKE_ENGINE, root / "backends" / "tensorrtllm", ignore=shutil.ignore_patterns("__pycache__"))


@contextmanager
def serve(root: Path, policy: Path | None = None) -> Iterator[RunningServer]:
    """The repository in `root` with the backends in it."""
    log_path, backends = root / "server.log", root / "backends"
    with embedded_server(root, log_path=log_path, backends=backends, policy=policy) as running:
        yield running


@dataclass
class Answer:
    """What one request of the entry brought."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish_reason: str = ""
    error: str = ""
    last: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All text."""
        return "".join(self.texts)


def _inputs(values: Mapping[str, object]) -> list[grpc_client.InferInput]:
    inputs = []
    for name, value in values.items():
        if isinstance(value, str | bytes):
            value = [value]
        if isinstance(value, list):
            array = np.array([[v.encode() if isinstance(v, str) else v for v in value]], dtype=np.object_)
            data_type = "BYTES"
        else:
            array = value if isinstance(value, np.ndarray) else np.array([[value]])
            data_type = NUMBERS[array.dtype.type]
        tensor = grpc_client.InferInput(name, list(array.shape), data_type)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


class Client:
    """One gRPC stream to the server."""

    def __init__(self, url: str) -> None:
        self._client = grpc_client.InferenceServerClient(url)
        self._answers: dict[str, queue.Queue] = {}
        self._client.start_stream(self._receive)

    def _receive(self, result: object, error: object) -> None:
        key = result.get_response().id if result is not None else None
        for name, answers in self._answers.items():
            if key == name or (key is None and len(self._answers) == 1):
                answers.put((time.monotonic(), result, error))

    def ask(
        self,
        request_id: str,
        parameters: Mapping[str, object] | None = None,
        model: str = "tensorrt_llm_bls",
        **values: object,
    ) -> None:
        """Send one request."""
        self.send(request_id, _inputs(values), parameters, model)

    def send(
        self,
        request_id: str,
        inputs: list[grpc_client.InferInput],
        parameters: Mapping[str, object] | None = None,
        model: str = "tensorrt_llm_bls",
    ) -> None:
        """Send one request with tensors as they are."""
        self._answers[request_id] = queue.Queue()
        self._client.async_stream_infer(
            model,
            inputs,
            request_id=request_id,
            parameters=dict(parameters or {}),
            enable_empty_final_response=True,
        )

    def events(self, request_id: str, timeout_s: float = 20) -> Iterator[tuple[float, object, object]]:
        """The responses of one request until its final flag or an error."""
        while True:
            event = self._answers[request_id].get(timeout=timeout_s)
            yield event
            if event[2] is not None or event[1].get_response().parameters["triton_final_response"].bool_param:
                return

    def read(self, request_id: str, timeout_s: float = 20) -> Answer:
        """Everything that one request brings."""
        answer = Answer()
        for moment, result, error in self.events(request_id, timeout_s):
            answer.times.append(moment)
            if error is not None:
                answer.error = str(error.message())
                break
            names = [output.name for output in result.get_response().outputs]
            answer.last = {name: result.as_numpy(name) for name in names}
            answer.texts.append(answer.last["text_output"].item().decode("utf-8"))
            answer.token_ids.extend(answer.last["output_token_ids"].reshape(-1).tolist())
            answer.counts.append(answer.last["output_token_ids"].size)
            if "finish_reason" in answer.last:
                answer.finish_reason = answer.last["finish_reason"].item().decode()
        return answer

    def stop(self, request_id: str, values: Mapping[str, object]) -> None:
        """Send the engine's own stop request for a request of this stream."""
        self._client.async_stream_infer("tensorrt_llm", _inputs(values), request_id=request_id)

    def close(self, cancel: bool = False) -> None:
        """End the stream, or break it off as a client that goes away does."""
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()


def complete(url: str, parameters: Mapping[str, object] | None = None, **values: object) -> Answer:
    """One request over a connection of its own."""
    client = Client(url)
    try:
        client.ask("one", parameters, **values)
        return client.read("one")
    finally:
        client.close()


def value(number: int, kind: type = np.int32) -> np.generic:
    """A number with the type of its input."""
    return kind(number)


def metric(metrics_url: str, name: str, label: str = "") -> float:
    """One sample of the metrics page; 0 when it has not been seen."""
    page = urllib.request.urlopen(f"http://{metrics_url}/metrics", timeout=5).read().decode()
    found = re.findall(rf"^{re.escape(name)}(\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    return sum(float(number) for labels, number in found if label in labels)


def wait_until(condition: object, timeout_s: float) -> float:
    """Seconds until the condition held; fails when it never did."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < timeout_s, "the condition never held"
        time.sleep(0.01)
    return time.monotonic() - begin


def post(url: str, path: str, body: Mapping[str, object]) -> tuple[int, Sequence[dict]]:
    """POST JSON; status and the JSON values of the answer (one, or one per event)."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://{url}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    events = re.findall(r"^data: (.*)$", text, re.MULTILINE) or [text]
    return status, [json.loads(event) for event in events if event]
