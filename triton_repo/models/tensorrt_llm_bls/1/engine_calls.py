"""How the entry talks to the other models of the server."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from entry_request import EntryRequest
from seam import Array, call, outbound, stream
from word_rows import word_rows

PREPROCESSING_OUTPUTS = (
    "INPUT_ID",
    "REQUEST_INPUT_LEN",
    "REQUEST_OUTPUT_LEN",
    "BAD_WORDS_IDS",
    "STOP_WORDS_IDS",
    "EMBEDDING_BIAS",
    "OUT_END_ID",
    "OUT_PAD_ID",
)
PREPROCESSED_TO_ENGINE: Mapping[str, str] = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
STATISTICS = ("total_draft_tokens", "total_accepted_draft_tokens")
PERF_OUTPUTS = (
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
)


@dataclass(frozen=True)
class Prompt:
    """A preprocessed request."""

    tokens: int
    end_id: int
    stop_sequences: tuple[tuple[int, ...], ...]
    to_engine: Mapping[str, Array]


@dataclass(frozen=True)
class EngineStep:
    """One response of the engine; `bare` when it held no tensor at all."""

    token_ids: tuple[int, ...]
    drafted: int | None
    accepted: int | None
    perf: Mapping[str, Array]
    bare: bool


class TokenSource(Protocol):
    """Who makes the tokens of a request: one engine that speculates inside, or a loop over a draft and a target."""

    def steps(self, prompt: Prompt, request: EntryRequest, inner_id: str) -> Iterator[EngineStep]:
        """The steps of one sequence, in order; `ModelError` when the engine refuses."""
        ...

    def stop(self, inner_id: str) -> None:
        """End a running sequence; returns when the engine has taken note."""
        ...


def preprocess(request: EntryRequest) -> Prompt:
    """Ask the preprocessing model; `ModelError` carries its refusal."""
    parameters = json.dumps({"chat": True}) if request.chat else "{}"
    answer = call(outbound("preprocessing", request.to_preprocessing, PREPROCESSING_OUTPUTS, parameters=parameters))
    return Prompt(
        tokens=int(np.asarray(answer["REQUEST_INPUT_LEN"]).reshape(-1)[0]),
        end_id=int(np.asarray(answer["OUT_END_ID"]).reshape(-1)[0]),
        stop_sequences=word_rows(answer["STOP_WORDS_IDS"]),
        to_engine={PREPROCESSED_TO_ENGINE[name]: array for name, array in answer.items() if array.size},
    )


class OneEngine:
    """The plain path: a decoupled engine model that speculates inside."""

    def __init__(self, model: str) -> None:
        self._model = model

    def steps(self, prompt: Prompt, request: EntryRequest, inner_id: str) -> Iterator[EngineStep]:
        """Each response of the engine as one step."""
        inputs = {
            **prompt.to_engine,
            **request.to_engine,
            "streaming": np.array([[True]]),
            "exclude_input_in_output": np.array([[True]]),
            "return_perf_metrics": np.array([[True]]),
        }
        outputs: Sequence[str] = ("output_ids", "sequence_length", *STATISTICS)
        if request.perf_metrics:
            outputs = (*outputs, *PERF_OUTPUTS)
        drafting = {} if request.draft_tokens is None else {"num_draft_tokens": request.draft_tokens}
        inner = outbound(self._model, inputs, outputs, inner_id, json.dumps(drafting))
        for answer in stream(inner):
            yield engine_step(answer)

    def stop(self, inner_id: str) -> None:
        """Send the engine's own stop request for this id."""
        one = np.array([[1]], dtype=np.int32)
        inputs = {
            "input_ids": one,
            "input_lengths": one,
            "request_output_len": one,
            "stop": np.array([[True]]),
            "streaming": np.array([[True]]),
        }
        for _ in stream(outbound(self._model, inputs, ("output_ids",), inner_id)):
            pass


def engine_step(answer: Mapping[str, Array]) -> EngineStep:
    """One answer of the engine as a value."""
    ids = answer.get("output_ids")
    if ids is None:
        return EngineStep((), None, None, {}, True)
    lengths = answer.get("sequence_length")
    flat = [int(token_id) for token_id in ids.reshape(-1)]
    count = len(flat) if lengths is None else int(lengths.reshape(-1)[0])
    drafted, accepted = (answer.get(name) for name in STATISTICS)
    return EngineStep(
        token_ids=tuple(flat[:count]),
        drafted=None if drafted is None else int(drafted.reshape(-1)[0]),
        accepted=None if accepted is None else int(accepted.reshape(-1)[0]),
        perf={name: answer[name] for name in PERF_OUTPUTS if name in answer},
        bare=False,
    )
