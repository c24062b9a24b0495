"""Writes the answers of OpenAI's API: whole ones, chunks of streams, and how speculation went."""

import json
from collections.abc import Mapping, Sequence

from draftyard.nouns.openai import AnswerCounts, AnswerHead, OpenAiKind

# Made once: `json.dumps` with other than its own defaults makes one for every call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
DONE = b"data: [DONE]\n\n"
LENGTH = "length"
OBJECTS = {
    OpenAiKind.CHAT: ("chat.completion", "chat.completion.chunk"),
    OpenAiKind.COMPLETION: ("text_completion", "text_completion"),
}


def finish_reason(entry_reason: str) -> str:
    """OpenAI's word for why an answer ended: at its limit of tokens, or at an end token or stop word."""
    return "length" if entry_reason == LENGTH else "stop"


def event(value: Mapping[str, object]) -> bytes:
    """One server-sent event."""
    return b"data: " + _json(value) + b"\n\n"


def whole_answer(head: AnswerHead, text: str, reason: str, counts: AnswerCounts) -> bytes:
    """The body of an answer that is not streamed."""
    choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": reason}
    if head.kind is OpenAiKind.CHAT:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    body = _head(head, OBJECTS[head.kind][0])
    return _json({**body, "choices": [choice], "usage": usage(counts), **_metrics(counts)})


def first_chunk(head: AnswerHead) -> bytes:
    """What opens a stream of chat: who speaks. A stream of a completion opens with its text."""
    return _chunk(head, {"role": "assistant", "content": ""}, None) if head.kind is OpenAiKind.CHAT else b""


def text_chunk(head: AnswerHead, text: str) -> bytes:
    """A piece of text, of one token or of several."""
    return _chunk(head, {"content": text}, None)


def last_chunks(head: AnswerHead, reason: str, counts: AnswerCounts) -> bytes:
    """Why the answer ended, its counts when they were asked for, and the end mark.

    How speculation went stands at the root of the last chunk: the one with the counts when there is one.
    """
    if not head.include_usage:
        return _chunk(head, {}, reason, _metrics(counts)) + DONE
    body = _head(head, OBJECTS[head.kind][1])
    counted = event({**body, "choices": [], "usage": usage(counts), **_metrics(counts)})
    return _chunk(head, {}, reason) + counted + DONE


def usage(counts: AnswerCounts) -> dict[str, int]:
    """Tokens in and out, counted by their ids."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
    }


def accepted_by_step(tokens_by_step: Sequence[int], accepted: int) -> tuple[int, ...] | None:
    """How many drafted tokens each verification step accepted, from what the steps brought behind the prefill's token.

    A step brings what it accepted and one token more; only the last may be cut before that one. None when the total
    that the engine counted does not fit.
    """
    if not tokens_by_step:
        return () if accepted == 0 else None
    earlier = tuple(tokens - 1 for tokens in tokens_by_step[:-1])
    last = accepted - sum(earlier)
    return (*earlier, last) if tokens_by_step[-1] - 1 <= last <= tokens_by_step[-1] else None


def speculation(counts: AnswerCounts) -> dict[str, object] | None:
    """Statistics of one request in the shape that vLLM writes and aiperf reads; None where nothing was drafted.

    `acceptance_histogram[j]` counts the steps that accepted j tokens. Acceptance length counts the bonus token.
    Source: vLLM, "Per-Request Acceptance Metrics"; aiperf 0.13, per-request speculative decoding.
    """
    steps = counts.accepted_by_step
    if not counts.drafted or not steps:
        return None
    return {
        "mean_acceptance_length": 1 + counts.accepted / len(steps),
        "draft_acceptance_rate": counts.accepted / counts.drafted,
        "acceptance_histogram": [steps.count(accepted) for accepted in range(max(steps) + 1)],
        "num_accepted_draft_tokens": counts.accepted,
        "num_draft_tokens": counts.drafted,
        "num_spec_steps": len(steps),
        "num_spec_tokens": None,
    }


def models(model: str, created: int) -> bytes:
    """The list of the one model that is served."""
    return _json({"object": "list", "data": [_model(model, created)]})


def one_model(model: str, created: int) -> bytes:
    """The model by itself."""
    return _json(_model(model, created))


def _model(model: str, created: int) -> dict[str, object]:
    return {"id": model, "object": "model", "created": created, "owned_by": "draftyard"}


def _metrics(counts: AnswerCounts) -> dict[str, object]:
    found = speculation(counts)
    return {} if found is None else {"metrics": {"speculative_decoding": found}}


def _head(head: AnswerHead, what: str) -> dict[str, object]:
    return {"id": head.id, "object": what, "created": head.created, "model": head.model}


def _chunk(
    head: AnswerHead, delta: Mapping[str, str], reason: str | None, more: Mapping[str, object] | None = None
) -> bytes:
    choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": reason}
    if head.kind is OpenAiKind.CHAT:
        choice["delta"] = delta
    else:
        choice["text"] = delta.get("content", "")
    body = {**_head(head, OBJECTS[head.kind][1]), "choices": [choice], **(more or {})}
    if head.include_usage:
        body["usage"] = None
    return event(body)


def _json(value: Mapping[str, object]) -> bytes:
    return _ENCODER.encode(value).encode()
