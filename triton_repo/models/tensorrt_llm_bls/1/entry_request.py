"""Reads one request of the entry model and refuses what it does not offer."""

import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from bad_input import BadInput

Array: TypeAlias = "npt.NDArray[np.generic]"
Scalar: TypeAlias = "bool | int | float | str"

TO_PREPROCESSING: Mapping[str, str] = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
}
TO_ENGINE: Mapping[str, str] = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "temperature": "temperature",
    "length_penalty": "len_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "prompt_embedding_table": "prompt_embedding_table",
    "prompt_vocab_size": "prompt_vocab_size",
    "lora_task_id": "lora_task_id",
    "lora_weights": "lora_weights",
    "lora_config": "lora_config",
    "guided_decoding_guide_type": "guided_decoding_guide_type",
    "guided_decoding_guide": "guided_decoding_guide",
}
ONLY_VALUE: Mapping[str, int] = {
    "beam_width": 1,
    "num_return_sequences": 1,
    "return_log_probs": 0,
    "return_context_logits": 0,
    "return_generation_logits": 0,
    "use_draft_logits": 0,
}
NOT_OFFERED = ("decoder_text_input", "prompt_table_extra_id")
RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "max_tokens": (lambda value: value >= 1, "at least 1"),
    "num_draft_tokens": (lambda value: value >= 0, "0 for no speculation, or more"),
    "temperature": (lambda value: value > 0, "above 0; greedy decoding is top_k 1"),
    "top_k": (lambda value: value >= 0, "0 for no limit, or more"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "repetition_penalty": (lambda value: value > 0, "above 0"),
    "min_tokens": (lambda value: value >= 0, "0 or more"),
}
FINITE = ("length_penalty", "presence_penalty", "frequency_penalty")
KNOWN_PARAMETERS = ("chat", "timeout_s")


@dataclass(frozen=True)
class EntryRequest:
    """A checked request; `draft_tokens` None leaves the draft length to the engine."""

    text: str
    max_tokens: int
    min_tokens: int
    stream: bool
    draft_tokens: int | None
    exclude_input: bool
    stop_words: tuple[str, ...]
    own_end_id: int | None
    chat: bool
    timeout_s: float
    count_input: bool
    count_output: bool
    perf_metrics: bool
    to_preprocessing: Mapping[str, Array]
    to_engine: Mapping[str, Array]


@dataclass(frozen=True)
class EntryDefaults:
    """What holds where a request says nothing; `extra_parameters` are request parameters let through unread."""

    timeout_s: float
    extra_parameters: tuple[str, ...]


def parse_request(inputs: Mapping[str, Array], parameters_json: str, defaults: EntryDefaults) -> EntryRequest:
    """Inputs by name, each with a batch of one, and the request parameters; BadInput says what to change."""
    check_batch(inputs)
    check_texts(inputs)
    check_offered(inputs)
    check_ranges(inputs)
    parameters = read_parameters(parameters_json, defaults.extra_parameters)
    draft_tokens = scalar(inputs, "num_draft_tokens")
    end_id = scalar(inputs, "end_id")
    return EntryRequest(
        text=text_list(inputs, "text_input")[0],
        max_tokens=int(scalar(inputs, "max_tokens") or 0),
        min_tokens=int(scalar(inputs, "min_tokens") or 0),
        stream=flag(inputs, "stream", False),
        draft_tokens=None if draft_tokens is None else int(draft_tokens),
        exclude_input=flag(inputs, "exclude_input_in_output", True),
        stop_words=tuple(word for word in text_list(inputs, "stop_words") if word),
        own_end_id=None if end_id is None else int(end_id),
        chat=chat_wanted(parameters),
        timeout_s=timeout(parameters, defaults.timeout_s),
        count_input=flag(inputs, "return_num_input_tokens", True),
        count_output=flag(inputs, "return_num_output_tokens", True),
        perf_metrics=flag(inputs, "return_perf_metrics", False),
        to_preprocessing={TO_PREPROCESSING[name]: array for name, array in inputs.items() if name in TO_PREPROCESSING},
        to_engine={TO_ENGINE[name]: array for name, array in inputs.items() if name in TO_ENGINE},
    )


def check_batch(inputs: Mapping[str, Array]) -> None:
    """One prompt a request; batches are formed by the engine from concurrent requests."""
    for name in ("text_input", "max_tokens"):
        if name not in inputs:
            raise BadInput(f"{name} is missing")
    prompts = inputs["text_input"].size
    if prompts != 1 or any(array.ndim and array.shape[0] > 1 for array in inputs.values()):
        raise BadInput("one prompt a request: send several requests, they are decoded together")


def check_texts(inputs: Mapping[str, Array]) -> None:
    """Refuse bytes that are no text, also in what is only passed on."""
    for name, array in inputs.items():
        if array.dtype.kind in "OS" and any("\0" in text for text in text_list(inputs, name)):
            raise BadInput(f"{name} holds a NUL character")


def check_offered(inputs: Mapping[str, Array]) -> None:
    """Refuse inputs that this entry would have to ignore."""
    for name in NOT_OFFERED:
        if name in inputs:
            raise BadInput(f"{name} is not offered by this entry: leave it out")
    for name, only in ONLY_VALUE.items():
        value = scalar(inputs, name)
        if value is not None and int(value) != only:
            shown = "false" if only == 0 else str(only)
            raise BadInput(f"{name} is not offered by this entry: leave it out or send {shown}")


def check_ranges(inputs: Mapping[str, Array]) -> None:
    """Refuse numbers that mean nothing, naming what is allowed."""
    for name, (allowed, words) in RANGES.items():
        value = scalar(inputs, name)
        if value is not None and not (math.isfinite(value) and allowed(value)):
            raise BadInput(f"{name} is {value:g}: send {words}")
    for name in FINITE:
        value = scalar(inputs, name)
        if value is not None and not math.isfinite(value):
            raise BadInput(f"{name} is {value}: send a finite number")


def scalar(inputs: Mapping[str, Array], name: str) -> int | float | None:
    """A one-element number; None when it was not sent."""
    array = inputs.get(name)
    if array is None:
        return None
    if array.size != 1:
        raise BadInput(f"{name} has {array.size} values: send one")
    value = array.reshape(-1)[0].item()
    return value if isinstance(value, float) else int(value)


def flag(inputs: Mapping[str, Array], name: str, default: bool) -> bool:
    """A one-element truth value."""
    value = scalar(inputs, name)
    return default if value is None else bool(value)


def text_list(inputs: Mapping[str, Array], name: str) -> list[str]:
    """A string input as texts; not UTF-8 is refused."""
    array = inputs.get(name)
    if array is None:
        return []
    try:
        return [bytes(entry).decode("utf-8") for entry in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise BadInput(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None


def read_parameters(parameters_json: str, extra: tuple[str, ...]) -> Mapping[str, Scalar]:
    """Request parameters; the server makes one of every unknown JSON key, so a misspelt input shows up here."""
    parameters: dict[str, Scalar] = json.loads(parameters_json or "{}")
    inputs = (*TO_PREPROCESSING, *TO_ENGINE, *ONLY_VALUE, "stream", "num_draft_tokens", "exclude_input_in_output")
    for name in parameters:
        if name in KNOWN_PARAMETERS or name in extra or name.startswith("triton_"):
            continue
        near = difflib.get_close_matches(name, (*KNOWN_PARAMETERS, *inputs), 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"known parameters are {', '.join(KNOWN_PARAMETERS)}"
        raise BadInput(f"{name} is neither an input nor a request parameter: {hint}")
    return parameters


def chat_wanted(parameters: Mapping[str, Scalar]) -> bool:
    """True when text_input holds messages."""
    value = parameters.get("chat", False)
    if not isinstance(value, bool):
        raise BadInput(f"request parameter chat is {value!r}: send true or false")
    return value


def timeout(parameters: Mapping[str, Scalar], default_s: float) -> float:
    """Seconds until the request is given up: the server's limit, or less when the client asks for less."""
    value = parameters.get("timeout_s", default_s)
    try:
        seconds = float(value) if not isinstance(value, bool) else math.nan
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise BadInput(f"request parameter timeout_s is {value!r}: send seconds above 0")
    return min(seconds, default_s)
