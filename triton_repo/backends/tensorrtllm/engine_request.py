"""Reads a request in the tensors of TensorRT-LLM's Triton backend (1.2) and refuses what this engine cannot do."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from bad_input import BadInput
from word_rows import word_rows

from draftyard.nouns.generation import GenerationRequest, SamplingParameters

Array: TypeAlias = "npt.NDArray[np.generic]"
NO_IDS: Array = np.zeros(0, dtype=np.int32)

SERVED = frozenset(
    {
        "input_ids",
        "input_lengths",
        "request_output_len",
        "draft_input_ids",
        "end_id",
        "pad_id",
        "stop_words_list",
        "bad_words_list",
        "temperature",
        "runtime_top_k",
        "runtime_top_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_tokens",
        "seed",
        "streaming",
        "stop",
        "exclude_input_in_output",
        "return_perf_metrics",
        "return_num_input_tokens",
        "return_num_output_tokens",
    }
)
ONLY_VALUE: Mapping[str, float] = {
    "beam_width": 1,
    "num_return_sequences": 1,
    "return_log_probs": 0,
    "return_context_logits": 0,
    "return_generation_logits": 0,
    "len_penalty": 1,
    "early_stopping": 0,
}


@dataclass(frozen=True)
class EngineCall:
    """A checked request; `include_input` puts the prompt before the output of an answer in one piece."""

    generation: GenerationRequest
    streaming: bool
    include_input: bool
    perf_metrics: bool


def scalar(inputs: Mapping[str, Array], name: str, default: float) -> float:
    """A one-element number; `default` when it was not sent."""
    array = inputs.get(name)
    if array is None:
        return default
    if array.size != 1:
        raise BadInput(f"{name} has {array.size} values: batches of one prompt are served")
    value = array.reshape(-1)[0].item()
    return value if isinstance(value, int | float) else default


def is_stop(inputs: Mapping[str, Array]) -> bool:
    """True for a request that ends another one."""
    return bool(scalar(inputs, "stop", 0))


def parse_call(
    inputs: Mapping[str, Array], parameters_json: str, request_id: str, exclude_by_default: bool
) -> EngineCall:
    """Inputs by name and request parameters to a request of the engine; BadInput says what is not served."""
    check_served(inputs)
    length = int(scalar(inputs, "input_lengths", 0))
    ids = inputs.get("input_ids", NO_IDS).reshape(-1)
    if not 0 < length <= ids.size:
        raise BadInput(f"input_lengths is {length} and input_ids has {ids.size} ids")
    end_id = int(scalar(inputs, "end_id", -1))
    generation = GenerationRequest(
        request_id=request_id,
        input_ids=tuple(int(token_id) for token_id in ids[:length]),
        max_tokens=int(scalar(inputs, "request_output_len", 0)),
        end_ids=() if end_id < 0 else (end_id,),
        stop_sequences=words(inputs, "stop_words_list"),
        bad_sequences=words(inputs, "bad_words_list"),
        sampling=sampling(inputs),
        max_draft_len=draft_length(parameters_json),
        draft_ids=tuple(int(token_id) for token_id in inputs.get("draft_input_ids", NO_IDS).reshape(-1)),
    )
    return EngineCall(
        generation=generation,
        streaming=bool(scalar(inputs, "streaming", 0)),
        include_input=not bool(scalar(inputs, "exclude_input_in_output", exclude_by_default)),
        perf_metrics=bool(scalar(inputs, "return_perf_metrics", 0)),
    )


def check_served(inputs: Mapping[str, Array]) -> None:
    """Refuse a batch, and every input that would have to be ignored; an empty tensor asks for nothing."""
    if any(array.ndim > 1 and array.shape[0] > 1 for array in inputs.values()):
        raise BadInput("batches of one prompt are served: send several requests, they are decoded together")
    for name, array in inputs.items():
        if name in SERVED or array.size == 0:
            continue
        if name not in ONLY_VALUE:
            raise BadInput(f"{name} is not served by the reference engine: leave it out")
        if scalar(inputs, name, 0) != ONLY_VALUE[name]:
            raise BadInput(f"{name} is served with {ONLY_VALUE[name]:g} alone by the reference engine")


def words(inputs: Mapping[str, Array], name: str) -> tuple[tuple[int, ...], ...]:
    """A word list in two rows; () when it was not sent or is empty."""
    array = inputs.get(name)
    return () if array is None or array.size == 0 else word_rows(array)


def sampling(inputs: Mapping[str, Array]) -> SamplingParameters:
    """Sampling settings; what is not sent is greedy decoding, as the backend has it."""
    default = SamplingParameters()
    top_p = scalar(inputs, "runtime_top_p", default.top_p)
    return SamplingParameters(
        temperature=scalar(inputs, "temperature", default.temperature),
        top_k=int(scalar(inputs, "runtime_top_k", default.top_k)),
        top_p=top_p if top_p > 0 else default.top_p,  # the backend drops a value that is not positive
        seed=int(scalar(inputs, "seed", default.seed)),
        repetition_penalty=scalar(inputs, "repetition_penalty", default.repetition_penalty),
        presence_penalty=scalar(inputs, "presence_penalty", default.presence_penalty),
        frequency_penalty=scalar(inputs, "frequency_penalty", default.frequency_penalty),
        min_tokens=int(scalar(inputs, "min_tokens", default.min_tokens)),
    )


def draft_length(parameters_json: str) -> int | None:
    """The request parameter num_draft_tokens; None leaves the draft length to the engine."""
    value = json.loads(parameters_json or "{}").get("num_draft_tokens")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadInput(f"request parameter num_draft_tokens is {value!r}: send 0 or more")
    return value
