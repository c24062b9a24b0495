"""Describes the gateway as an OpenAPI document, from the tables that requests are read with."""

from collections.abc import Mapping

from draftyard.nouns.openai import OpenAiKind
from draftyard.nouns.web import EVENTS, JSON
from draftyard.rules.openai_fields import (
    FLAGS,
    LABELS,
    MAX_STOPS,
    NO_NUL,
    ROLES,
    STREAM_OPTIONS,
    fixed_fields,
    number_fields,
)

Schema = dict[str, object]
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NOTHING: Schema = {"enum": [None, []]}
_STATUSES = {
    "400": "the request is wrong, or asks for what is not served",
    "401": "the API key is missing or wrong",
    "404": "there is no such model",
    "408": "the body did not come in time",
    "413": "the body is too large",
    "415": "the body is not declared as JSON",
    "429": "as many requests are running as may; come back after Retry-After",
    "500": "the server failed",
    "503": "the server is busy, cannot be reached, or stops; come back after Retry-After",
    "504": "no whole answer in time",
}
_PLAIN = ("401", "500")


def document(model: str, version: str, needs_key: bool, most_tokens: int) -> Schema:
    """The OpenAPI 3.2 document of a gateway that serves this model, with answers of `most_tokens` tokens at most."""
    guard: Schema = {"security": [{"key": []}]} if needs_key else {}
    parameter: Schema = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    components: Schema = {"schemas": _schemas(model, most_tokens)}
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.2.0",
        "info": {"title": "Draftyard gateway", "version": version},
        "paths": {
            "/v1/models": {"get": _get("models", "Models", _PLAIN, guard)},
            "/v1/models/{model}": {"get": _get("model", "Model", ("404", *_PLAIN), guard, [parameter])},
            "/v1/chat/completions": {"post": _post("chat", "ChatRequest", "Chat", "ChatChunk", guard)},
            "/v1/completions": {"post": _post("complete", "CompletionRequest", "Completion", "Completion", guard)},
            "/health/live": {"get": _get("live", "Health", ("500",), {})},
            "/health/ready": {"get": _get("ready", "Health", ("500", "503"), {})},
            "/metrics": {"get": _page("metrics", "Prometheus metrics", "text/plain")},
            "/openapi.json": {"get": _page("document", "this document", JSON)},
        },
        "components": components,
    }


def _refusals(statuses: tuple[str, ...]) -> Schema:
    content = {JSON: {"schema": _see("Problem")}}
    return {status: {"description": _STATUSES[status], "content": content} for status in statuses}


def _get(
    name: str, schema: str, statuses: tuple[str, ...], guard: Schema, parameters: list[Schema] | None = None
) -> Schema:
    found = {"description": "done", "content": {JSON: {"schema": _see(schema)}}}
    answers: Schema = {"200": found, **_refusals(statuses)}
    return {"operationId": name, "parameters": parameters or [], "responses": answers, **guard}


def _page(name: str, words: str, content_type: str) -> Schema:
    return {"operationId": name, "responses": {"200": {"description": words, "content": {content_type: {}}}}}


def _post(name: str, asked: str, answered: str, chunk: str, guard: Schema) -> Schema:
    found = {"description": "the answer", "content": {JSON: {"schema": _see(answered)}, EVENTS: _events(chunk)}}
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": {JSON: {"schema": _see(asked)}}},
        "responses": {"200": found, **_refusals(tuple(_STATUSES))},
        **guard,
    }


def _events(chunk: str) -> Schema:
    """Each event of a stream: a chunk, the end mark, or, in place of the end mark, the error that broke it off."""
    parts: Schema = {"anyOf": [_see(chunk), _see("Problem")]}
    data: Schema = {"anyOf": [{"const": "[DONE]"}, {"contentMediaType": JSON, "contentSchema": parts}]}
    fields: Schema = {"data": {"type": "string", **data}, "event": {"const": "message"}}
    return {"itemSchema": {"type": "object", "properties": fields, "required": ["data"]}}


def _schemas(model: str, most_tokens: int) -> Schema:
    found: Schema = {
        "Problem": _object({"error": _problem()}),
        "Health": _object({"status": {"type": "string"}}),
        "Model": _object(
            {"id": {"const": model}, "object": {"const": "model"}, "created": _COUNT, "owned_by": {"type": "string"}}
        ),
        "Models": _object({"object": {"const": "list"}, "data": {"type": "array", "items": _see("Model")}}),
        "Usage": _object({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT}),
        "Metrics": _object({"speculative_decoding": _speculation()}),
        "Message": _message(),
        "ChatRequest": _request(OpenAiKind.CHAT, model, most_tokens),
        "CompletionRequest": _request(OpenAiKind.COMPLETION, model, most_tokens),
    }
    text: Schema = {"type": "string"}
    spoken: dict[str, Schema] = {"role": {"const": "assistant"}, "content": text, "refusal": {"type": "null"}}
    found["Chat"] = _answer("chat.completion", {"message": _object(spoken)})
    delta: Schema = {"type": "object", "properties": {"role": text, "content": text}, "additionalProperties": False}
    found["ChatChunk"] = _answer("chat.completion.chunk", {"delta": delta}, chunk=True)
    found["Completion"] = _answer("text_completion", {"text": text}, chunk=True)
    return found


def _problem() -> Schema:
    text: Schema = {"type": "string"}
    perhaps: Schema = {"type": ["string", "null"]}
    return _object({"message": text, "type": text, "param": perhaps, "code": perhaps})


def _speculation() -> Schema:
    return _object(
        {
            "mean_acceptance_length": {"type": "number", "minimum": 1},
            "draft_acceptance_rate": {"type": "number", "minimum": 0, "maximum": 1},
            "acceptance_histogram": {"type": "array", "items": _COUNT, "minItems": 1},
            "num_accepted_draft_tokens": _COUNT,
            "num_draft_tokens": _COUNT,
            "num_spec_steps": _COUNT,
            "num_spec_tokens": {"type": ["integer", "null"]},
        }
    )


def _answer(what: str, content: Mapping[str, Schema], chunk: bool = False) -> Schema:
    """An answer or a chunk of one; chunks have counts only where they were asked for, and metrics at the end."""
    choice = _object(
        {
            "index": {"const": 0},
            "logprobs": {"type": "null"},
            "finish_reason": {"enum": ["stop", "length", *([None] if chunk else [])]},
            **content,
        }
    )
    fields: dict[str, Schema] = {
        "id": {"type": "string"},
        "object": {"const": what},
        "created": _COUNT,
        "model": {"type": "string"},
        "choices": {"type": "array", "items": choice, "maxItems": 1},
        "usage": {"anyOf": [_see("Usage"), {"type": "null"}]} if chunk else _see("Usage"),
        "metrics": _see("Metrics"),
    }
    needed = [name for name in fields if name != "metrics" and not (chunk and name == "usage")]
    return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}


def _text(least: int) -> Schema:
    return {"type": "string", "minLength": least, "pattern": NO_NUL}


def _message() -> Schema:
    part = _object({"type": {"const": "text"}, "text": _text(0)})
    content: Schema = {"anyOf": [_text(0), {"type": "array", "items": part, "minItems": 1}]}
    empty = ("refusal", "annotations", "audio", "function_call", "tool_calls")
    fields = {
        "role": {"enum": list(ROLES)},
        "content": content,
        "name": {"anyOf": [_text(1), {"type": "null"}]},
        **{name: {**_NOTHING, "description": "may be sent back empty"} for name in empty},
    }
    return {"type": "object", "properties": fields, "required": ["role", "content"], "additionalProperties": False}


def _request(kind: OpenAiKind, model: str, most_tokens: int) -> Schema:
    chat = kind is OpenAiKind.CHAT
    words = {"type": "array", "items": _text(1), "maxItems": MAX_STOPS}
    options = {name: {"type": ["boolean", "null"], "description": why} for name, why in STREAM_OPTIONS.items()}
    prompt: Schema = {"anyOf": [_text(1), {"type": "array", "items": _text(1), "minItems": 1, "maxItems": 1}]}
    messages: Schema = {"type": "array", "items": _see("Message"), "minItems": 1}
    fields: Schema = {
        "model": {"enum": [model]},
        ("messages" if chat else "prompt"): messages if chat else prompt,
        "stop": {"anyOf": [_text(1), words, {"type": "null"}]},
        "stream_options": {"type": ["object", "null"], "properties": options, "additionalProperties": False},
        "metadata": {"type": ["object", "null"]},
        **{field.name: field.schema() for field in number_fields(kind, most_tokens)},
        **{name: {"type": ["boolean", "null"], "description": why} for name, why in FLAGS.items()},
        **{name: field.schema() for name, field in fixed_fields(kind).items()},
        **{name: {"type": ["string", "null"], "description": "without effect"} for name in LABELS},
    }
    needed = ["model", "messages" if chat else "prompt"]
    return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}


def _object(fields: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _see(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
