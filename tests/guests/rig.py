"""A repository of the guests around the scripted engine, and a plain client for it."""

import json
import queue
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc_client
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "triton_repo" / "models"
FAKE_ENGINE = ROOT / "tests" / "fakes" / "triton_engine"
NUMBERS = {np.int32: "INT32", np.float32: "FP32", np.uint64: "UINT64", np.bool_: "BOOL"}

PREPROCESSING = (
    "QUERY:STRING:1! REQUEST_OUTPUT_LEN:INT32:1! BAD_WORDS_DICT:STRING:-1 STOP_WORDS_DICT:STRING:-1 END_ID:INT32:1 "
    "PAD_ID:INT32:1 EMBEDDING_BIAS_WORDS:STRING:-1 EMBEDDING_BIAS_WEIGHTS:FP32:-1",
    "INPUT_ID:INT32:-1 REQUEST_INPUT_LEN:INT32:1 DECODER_INPUT_ID:INT32:-1 REQUEST_DECODER_INPUT_LEN:INT32:1 "
    "REQUEST_OUTPUT_LEN:INT32:-1 BAD_WORDS_IDS:INT32:2,-1 STOP_WORDS_IDS:INT32:2,-1 EMBEDDING_BIAS:FP32:-1 "
    "OUT_END_ID:INT32:1 OUT_PAD_ID:INT32:1",
)
ENGINE = (
    "input_ids:INT32:-1 input_lengths:INT32:1! request_output_len:INT32:1! end_id:INT32:1 pad_id:INT32:1 "
    "stop_words_list:INT32:2,-1 bad_words_list:INT32:2,-1 embedding_bias:FP32:-1 temperature:FP32:1 "
    "runtime_top_k:INT32:1 runtime_top_p:FP32:1 repetition_penalty:FP32:1 presence_penalty:FP32:1 "
    "frequency_penalty:FP32:1 len_penalty:FP32:1 min_tokens:INT32:1 seed:UINT64:1 stop:BOOL:1 streaming:BOOL:1 "
    "exclude_input_in_output:BOOL:1 return_perf_metrics:BOOL:1",
    "output_ids:INT32:-1,-1 sequence_length:INT32:-1 acceptance_rate:FP32:1 total_draft_tokens:INT32:1 "
    "total_accepted_draft_tokens:INT32:1 num_input_tokens:INT32:1 num_output_tokens:INT32:1",
)
POSTPROCESSING = ("TOKENS_BATCH:INT32:-1,-1! SEQUENCE_LENGTH:INT32:-1!", "OUTPUT:STRING:-1")
ENTRY = (
    "text_input:STRING:1! max_tokens:INT32:1! bad_words:STRING:-1 stop_words:STRING:-1 end_id:INT32:1 pad_id:INT32:1 "
    "top_k:INT32:1 top_p:FP32:1 temperature:FP32:1 repetition_penalty:FP32:1 min_tokens:INT32:1 seed:UINT64:1 "
    "presence_penalty:FP32:1 frequency_penalty:FP32:1 stream:BOOL:1 exclude_input_in_output:BOOL:1 beam_width:INT32:1 "
    "num_draft_tokens:INT32:1 return_log_probs:BOOL:1 return_perf_metrics:BOOL:1 return_num_input_tokens:BOOL:1 "
    "return_num_output_tokens:BOOL:1 embedding_bias_words:STRING:-1 embedding_bias_weights:FP32:-1",
    "text_output:STRING:-1 finish_reason:STRING:1 output_token_ids:INT32:-1 num_input_tokens:INT32:1 "
    "num_output_tokens:INT32:1 total_draft_tokens:INT32:1 total_accepted_draft_tokens:INT32:1 acceptance_rate:FP32:1",
)


def _tensors(words: str, message: object, with_optional: bool) -> None:
    for word in words.split():
        name, data_type, dims = word.rstrip("!").split(":")
        tensor = message.add(name=name, dims=[int(part) for part in dims.split(",")])
        tensor.data_type = model_config_pb2.DataType.Value(f"TYPE_{data_type}")
        if with_optional:
            tensor.optional = not word.endswith("!")


def config_text(
    name: str, tensors: tuple[str, str], parameters: Mapping[str, str], decoupled: bool = False, backend: str = "python"
) -> str:
    """A model configuration in text form."""
    config = model_config_pb2.ModelConfig(name=name, backend=backend, max_batch_size=8)
    _tensors(tensors[0], config.input, True)
    _tensors(tensors[1], config.output, False)
    config.model_transaction_policy.decoupled = decoupled
    config.instance_group.add(count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return text_format.MessageToString(config)


def write_guest(directory: Path, name: str, config: str) -> None:
    """A guest's folder with the shared modules that its manifest entry names."""
    version = directory / name / "1"
    shutil.copytree(MODELS / name / "1", version, ignore=shutil.ignore_patterns("__pycache__"))
    for file in json.loads((MODELS / "guests.json").read_text(encoding="utf-8"))[name]:
        shutil.copy(MODELS / "shared" / file, version / file)
    (directory / name / "config.pbtxt").write_text(config, encoding="utf-8")


def write_repository(root: Path, script: Mapping[str, object], entry: Mapping[str, str] | None = None) -> None:
    """`root/models` with the scripted engine behind the guests; `root/tokenizer` must exist."""
    models = root / "models"
    tokenizer = {"tokenizer_dir": "tokenizer"}
    limits = {"max_input_len": "512", "max_seq_len": "1024"}
    write_guest(models, "preprocessing", config_text("preprocessing", PREPROCESSING, {**tokenizer, **limits}))
    write_guest(models, "postprocessing", config_text("postprocessing", POSTPROCESSING, tokenizer))
    entry_parameters = {**tokenizer, "default_timeout_s": "30", **(entry or {})}
    write_guest(models, "tensorrt_llm_bls", config_text("tensorrt_llm_bls", ENTRY, entry_parameters, True))
    engine_parameters = {**tokenizer, "script": json.dumps(script)}
    engine = models / "tensorrt_llm"
    shutil.copytree(FAKE_ENGINE, engine, ignore=shutil.ignore_patterns("__pycache__"))
    (engine / "config.pbtxt").write_text(config_text("tensorrt_llm", ENGINE, engine_parameters, True), encoding="utf-8")


@dataclass
class Answer:
    """What one request of the entry brought."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
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
            array = np.array([[value]])
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

    def ask(self, request_id: str, parameters: Mapping[str, object] | None = None, **values: object) -> None:
        """Send one request."""
        self._answers[request_id] = queue.Queue()
        self._client.async_stream_infer(
            "tensorrt_llm_bls",
            _inputs(values),
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
            if "finish_reason" in answer.last:
                answer.finish_reason = answer.last["finish_reason"].item().decode()
        return answer

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
