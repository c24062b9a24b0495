"""Speculation with a draft that is a model of its own: draft, verify, stream what stood, and again."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from bad_input import BadInput
from draft_policy import DraftPolicy
from engine_calls import TRUE, EngineStep, Prompt, ask_engine, stop_engine
from entry_request import EntryRequest
from seam import Array, ModelError

# The draft is sampled as the target is. Adapters, guides and ends are the target's alone.
TO_DRAFT = (
    "runtime_top_k",
    "runtime_top_p",
    "temperature",
    "repetition_penalty",
    "bad_words_list",
    "embedding_bias",
    "pad_id",
)
# They count generated tokens; what was generated comes back to the engine as a part of the prompt.
COUNTED_PENALTIES = ("presence_penalty", "frequency_penalty")
FIRST_TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns")
FALSE: Array = np.array([[False]])


@dataclass
class DraftedSequence:
    """One request on its way: its prompt, the output so far, and the counts over all its steps."""

    prompt: Prompt
    request: EntryRequest
    inner_id: str
    output: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    perf: dict[str, Array] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Tokens that may still come."""
        return self.request.max_tokens - len(self.output)

    def inputs(self, count: int, role: str) -> dict[str, Array]:
        """What both engines are told: the sequence so far, how many tokens to add, and random numbers of their own.

        One seed for all steps would draw each step's tokens with the same random numbers.
        """
        given = self.prompt.to_engine["input_ids"].reshape(-1)
        so_far = np.concatenate([given[: self.prompt.tokens], np.array(self.output, dtype=np.int32)])
        seed = self.request.to_engine.get("seed")
        base = 0 if seed is None else int(seed.reshape(-1)[0])
        digest = hashlib.blake2b(f"{base} {len(self.output)} {role}".encode(), digest_size=8).digest()
        inputs = {
            "input_ids": so_far.astype(np.int32).reshape(1, -1),
            "input_lengths": number(so_far.size),
            "request_output_len": number(count),
        }
        if self.output:
            inputs["seed"] = np.array([[int.from_bytes(digest, "big")]], dtype=np.uint64)
        return inputs

    def to_target(self, count: int) -> dict[str, Array]:
        """A request to the target that continues the sequence; ends and stop words are its own."""
        least = max(self.request.min_tokens - len(self.output), 0)
        wishes = {**self.prompt.to_engine, **self.request.to_engine}
        return {**wishes, "min_tokens": number(least), **self.inputs(count, "target")}

    def to_draft(self, count: int) -> dict[str, Array]:
        """A request to the draft, which must not end before it has given so many tokens."""
        wishes = {**self.prompt.to_engine, **self.request.to_engine}
        chosen = {name: wishes[name] for name in TO_DRAFT if name in wishes}
        return {**chosen, **self.inputs(count, "draft"), "min_tokens": number(count), "streaming": FALSE}

    def take(self, step: EngineStep, draft: Sequence[int]) -> EngineStep:
        """Count a step of the target and give it the counts of the whole sequence."""
        self.output.extend(step.token_ids)
        self.drafted += len(draft)
        self.accepted += common_run(step.token_ids, draft)
        self._add_perf(step.perf)
        return replace(step, drafted=self.drafted, accepted=self.accepted, perf=dict(self.perf))

    def _add_perf(self, perf: Mapping[str, Array]) -> None:
        """Times from the first step to the last; blocks of the cache are added up."""
        for name, value in perf.items():
            if name.startswith("kv_cache") and name in self.perf:
                self.perf[name] = self.perf[name].astype(np.int32) + value.astype(np.int32)
            elif name not in FIRST_TIMES or name not in self.perf:
                self.perf[name] = value


class DraftLoop:
    """The first token is the target's alone, so that nobody waits for the draft; each later step verifies a draft.

    With a draft length of 0 (asked for, or by the policy) the rest of a request is streamed by the target. Requests
    with presence or frequency penalties are not drafted for: the target could not count what it generated in earlier
    steps. An error of either model ends the request. `silent_end` as in `EndRules`.
    """

    def __init__(self, target: str, draft: str, max_draft_len: int, policy: DraftPolicy, silent_end: bool) -> None:
        self._target = target
        self._draft = draft
        self._max_draft_len = max_draft_len
        self._policy = policy
        self._silent_end = silent_end

    def steps(
        self, prompt: Prompt, request: EntryRequest, inner_id: str, over: Callable[[], bool]
    ) -> Iterator[EngineStep]:
        """Each verification as one step; counts are those of all steps so far."""
        sequence = DraftedSequence(prompt, request, inner_id)
        penalised = refuse_counted_penalties(request)
        while sequence.left > 0 and not over():
            wish = 0 if penalised else self._wish(request)
            count = min(wish, sequence.left - 1)
            if count == 0:
                yield from self._rest(sequence)
                return
            draft = self._drafted(sequence, count, over) if sequence.output else ()
            if over():
                return
            step = self._verified(sequence, draft, over)
            if step.bare:
                return
            yield sequence.take(step, draft)
            if self._silent_end and step.token_ids == draft[: len(step.token_ids)]:
                return

    def stop(self, inner_id: str) -> None:
        """Whichever of the two works for this request, it stops."""
        try:
            stop_engine(self._target, inner_id)
        finally:
            stop_engine(self._draft, inner_id)

    def _wish(self, request: EntryRequest) -> int:
        wish = self._policy.draft_tokens(request.draft_tokens)
        return self._max_draft_len if wish is None else min(wish, self._max_draft_len)

    def _rest(self, sequence: DraftedSequence) -> Iterator[EngineStep]:
        """What is left of the sequence, streamed by the target without a draft."""
        inputs = {**sequence.to_target(sequence.left), "streaming": TRUE}
        perf_metrics, plain = sequence.request.perf_metrics, json.dumps({"num_draft_tokens": 0})
        for step in ask_engine(self._target, inputs, perf_metrics, sequence.inner_id, plain):
            yield step if step.bare else sequence.take(step, ())

    def _drafted(self, sequence: DraftedSequence, count: int, over: Callable[[], bool]) -> tuple[int, ...]:
        """The draft for the next step; () when the draft model gave none, for the target takes no empty draft."""
        try:
            answer = self._whole(self._draft, sequence, sequence.to_draft(count), False)
        except ModelError as error:
            raise ModelError(f"the draft model failed: {error}") from None
        if answer.bare and not over():
            raise ModelError("the draft model ended without an answer; its log has the reason")
        return answer.token_ids[:count]

    def _verified(self, sequence: DraftedSequence, draft: tuple[int, ...], over: Callable[[], bool]) -> EngineStep:
        """The tokens of the draft that stood, and one of the target's."""
        inputs = {**sequence.to_target(len(draft) + 1), "streaming": FALSE}
        if draft:
            inputs["draft_input_ids"] = np.array([draft], dtype=np.int32)
        answer = self._whole(self._target, sequence, inputs, sequence.request.perf_metrics)
        if not answer.token_ids and not self._silent_end and not over():
            done, total = len(sequence.output), sequence.request.max_tokens
            raise ModelError(f"the target made no progress after {done} of {total} tokens")
        return answer

    @staticmethod
    def _whole(model: str, sequence: DraftedSequence, inputs: Mapping[str, Array], perf_metrics: bool) -> EngineStep:
        """The answer to a request that is not streamed, as one step; bare when nothing came."""
        steps = [step for step in ask_engine(model, inputs, perf_metrics, sequence.inner_id) if not step.bare]
        if not steps:
            return EngineStep((), None, None, {}, True)
        return replace(steps[-1], token_ids=tuple(token_id for step in steps for token_id in step.token_ids))


def refuse_counted_penalties(request: EntryRequest) -> bool:
    """True for a request that must not be drafted for; BadInput when it asks for a draft all the same."""
    asked = [name for name in COUNTED_PENALTIES if name in request.to_engine and request.to_engine[name].any()]
    if asked and request.draft_tokens:
        raise BadInput(f"num_draft_tokens does not go with {asked[0]}: leave one of them out")
    return bool(asked)


def common_run(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading ids are the same."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def number(value: int) -> Array:
    """A whole number as the engine takes it."""
    return np.array([[value]], dtype=np.int32)
