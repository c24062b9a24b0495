"""How the entry talks to the other models of the server."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from bad_input import BadInput
from draft_policy import DraftPolicy
from entry_request import EntryRequest
from seam import Array, ModelError, call, outbound, stream
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
TRUE: Array = np.array([[True]])
# What tells a fault of preprocessing or of the server from a refusal; the code of an error is lost between models.
NO_REFUSAL = ("preprocessing failed", "queue size", "Failed to", "stub process")
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

    def steps(
        self, prompt: Prompt, request: EntryRequest, inner_id: str, over: Callable[[], bool]
    ) -> Iterator[EngineStep]:
        """The steps of one sequence, in order; `ModelError` when the engine refuses.

        Once `over` is true nobody wants more: what was asked for is read to its end, nothing further is asked.
        """
        ...

    def stop(self, inner_id: str) -> None:
        """End a running sequence; returns when the engine has taken note."""
        ...


def preprocess(request: EntryRequest) -> Prompt:
    """Ask the preprocessing model; `BadInput` carries its refusal, `ModelError` a fault of its own or of the server."""
    parameters = json.dumps({"chat": True}) if request.chat else "{}"
    try:
        answer = call(outbound("preprocessing", request.to_preprocessing, PREPROCESSING_OUTPUTS, parameters=parameters))
    except ModelError as error:
        if any(words in str(error) for words in NO_REFUSAL):
            raise
        raise BadInput(str(error)) from None
    return Prompt(
        tokens=int(np.asarray(answer["REQUEST_INPUT_LEN"]).reshape(-1)[0]),
        end_id=int(np.asarray(answer["OUT_END_ID"]).reshape(-1)[0]),
        stop_sequences=word_rows(answer["STOP_WORDS_IDS"]),
        to_engine={PREPROCESSED_TO_ENGINE[name]: array for name, array in answer.items() if array.size},
    )


class OneEngine:
    """The plain path: a decoupled engine model that speculates inside, with drafts as long as the policy lets them."""

    def __init__(self, model: str, policy: DraftPolicy) -> None:
        self._model = model
        self._policy = policy

    def steps(
        self, prompt: Prompt, request: EntryRequest, inner_id: str, over: Callable[[], bool]
    ) -> Iterator[EngineStep]:
        """Each response of the engine as one step."""
        wish = self._policy.draft_tokens(request.draft_tokens)
        drafting = {} if wish is None else {"num_draft_tokens": wish}
        inputs = {**prompt.to_engine, **request.to_engine, "streaming": TRUE}
        yield from ask_engine(self._model, inputs, request.perf_metrics, inner_id, json.dumps(drafting))

    def stop(self, inner_id: str) -> None:
        """Send the engine's own stop request for this id."""
        stop_engine(self._model, inner_id)


def ask_engine(
    model: str, inputs: Mapping[str, Array], perf_metrics: bool, inner_id: str, parameters: str = "{}"
) -> Iterator[EngineStep]:
    """Send one request to a decoupled engine model; each response as one step."""
    outputs: Sequence[str] = ("output_ids", "sequence_length", *STATISTICS, *(PERF_OUTPUTS if perf_metrics else ()))
    sent = {**inputs, "exclude_input_in_output": TRUE, "return_perf_metrics": TRUE}
    for answer in stream(outbound(model, sent, outputs, inner_id, parameters)):
        yield engine_step(answer)


def stop_engine(model: str, inner_id: str) -> None:
    """Send an engine's stop request for this id; returns when the engine has taken note."""
    one = np.array([[1]], dtype=np.int32)
    inputs = {"input_ids": one, "input_lengths": one, "request_output_len": one, "stop": TRUE, "streaming": TRUE}
    for _ in stream(outbound(model, inputs, ("output_ids",), inner_id)):
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
