"""Reads a request of OpenAI's API strictly: every field is served, without effect by a written rule, or refused."""

import difflib
import json
from collections.abc import Mapping

from draftyard.nouns.openai import OpenAiKind, OpenAiRequest
from draftyard.nouns.timeline import EntryCall, InputTensor
from draftyard.nouns.web import ApiProblem
from draftyard.rules.openai_fields import (
    FLAGS,
    LABELS,
    MAX_STOPS,
    ROLES,
    STREAM_OPTIONS,
    bad_value,
    fixed_fields,
    known_fields,
    not_served,
    number_fields,
)

LEAST_TEMPERATURE = 1e-3
LEAST_TOP_P = 1e-6
SEEDS = 1 << 64


def read_object(body: bytes) -> Mapping[str, object]:
    """The body as a JSON object; `ApiProblem` when it is none."""
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ApiProblem(400, f"the body is not UTF-8: byte {error.start}", code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        raise ApiProblem(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise ApiProblem(400, "the body must be a JSON object", code="invalid_json")
    return found


def read_request(kind: OpenAiKind, fields: Mapping[str, object], model: str, most_tokens: int) -> OpenAiRequest:
    """A checked request; `ApiProblem` names the first field that is wrong, unknown, or asks for what is not done."""
    _check_names(kind, fields)
    _check_model(fields.get("model"), model)
    for name, field in fixed_fields(kind).items():
        if not field.allows(fields.get(name)):
            raise not_served(name, f"{name} is not served with this value: {field.why}")
    _check_labels(fields)
    numbers = {
        field.name: field.read(fields[field.name])
        for field in number_fields(kind, most_tokens)
        if fields.get(field.name) is not None
    }
    flags = {name: _flag(fields, name) for name in FLAGS}
    limit = _whole(numbers, "max_completion_tokens")
    temperature, top_p = float(numbers.get("temperature", 1.0)), float(numbers.get("top_p", 1.0))
    return OpenAiRequest(
        kind=kind,
        text=_messages(fields.get("messages")) if kind is OpenAiKind.CHAT else _prompt(fields.get("prompt")),
        stream=flags["stream"],
        include_usage=_include_usage(fields.get("stream_options")),
        max_tokens=_whole(numbers, "max_tokens") if limit is None else limit,
        min_tokens=_whole(numbers, "min_tokens"),
        greedy=temperature < LEAST_TEMPERATURE or top_p < LEAST_TOP_P,
        temperature=temperature,
        top_p=top_p,
        top_k=_whole(numbers, "top_k") or 0,
        seed=_whole(numbers, "seed"),
        presence_penalty=numbers.get("presence_penalty"),
        frequency_penalty=numbers.get("frequency_penalty"),
        repetition_penalty=numbers.get("repetition_penalty"),
        stop=_stops(fields.get("stop")),
        ignore_eos=flags["ignore_eos"],
        num_draft_tokens=_whole(numbers, "num_draft_tokens"),
    )


def entry_call(request: OpenAiRequest, entry: str, default_max_tokens: int, random_seed: int) -> EntryCall:
    """The same request in the entry's tensors. The entry always streams: each response is one step of the engine.

    OpenAI's API samples with temperature 1 where nothing is said, the entry takes the likeliest token; so everything
    that decides is sent. `random_seed` is taken when the request has no seed.
    """
    max_tokens = request.max_tokens or default_max_tokens
    tensors = [
        InputTensor("text_input", "BYTES", (request.text,)),
        InputTensor("max_tokens", "INT32", (max_tokens,)),
        InputTensor("stream", "BOOL", (True,)),
        InputTensor("top_k", "INT32", (1 if request.greedy else request.top_k,)),
    ]
    if not request.greedy:
        seed = random_seed if request.seed is None else request.seed
        tensors.append(InputTensor("temperature", "FP32", (request.temperature,)))
        tensors.append(InputTensor("top_p", "FP32", (request.top_p,)))
        tensors.append(InputTensor("seed", "UINT64", (seed % SEEDS,)))
    for name, penalty in (
        ("presence_penalty", request.presence_penalty),
        ("frequency_penalty", request.frequency_penalty),
        ("repetition_penalty", request.repetition_penalty),
    ):
        if penalty is not None:
            tensors.append(InputTensor(name, "FP32", (penalty,)))
    if request.min_tokens is not None:
        tensors.append(InputTensor("min_tokens", "INT32", (min(request.min_tokens, max_tokens),)))
    if request.num_draft_tokens is not None:
        tensors.append(InputTensor("num_draft_tokens", "INT32", (request.num_draft_tokens,)))
    if request.ignore_eos:
        tensors.append(InputTensor("end_id", "INT32", (-1,)))
    if request.stop:
        tensors.append(InputTensor("stop_words", "BYTES", request.stop))
    return EntryCall(entry, tuple(tensors), (("chat", True),) if request.kind is OpenAiKind.CHAT else ())


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no JSON number")


def _check_names(kind: OpenAiKind, fields: Mapping[str, object]) -> None:
    known = known_fields(kind)
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.6)
            hint = f": did you mean {near[0]}?" if near else ""
            shown = name[:60].encode("utf-8", "replace").decode()
            raise ApiProblem(400, f"unknown field {shown}{hint}", param=shown, code="unknown_parameter")


def _check_model(asked: object, served: str) -> None:
    if not isinstance(asked, str):
        raise bad_value("model", f"model must be the name of the model that is served: {served}")
    if asked != served:
        shown = asked[:100].encode("utf-8", "replace").decode()
        raise ApiProblem(404, f"there is no model {shown}: {served} is served", param="model", code="model_not_found")


def _check_labels(fields: Mapping[str, object]) -> None:
    for name in LABELS:
        if not isinstance(fields.get(name), str | None):
            raise bad_value(name, f"{name} must be a text")
    if not isinstance(fields.get("metadata"), dict | None):
        raise bad_value("metadata", "metadata must be an object")


def _flag(fields: Mapping[str, object], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise bad_value(name, f"{name} must be true or false")
    return bool(value)


def _whole(numbers: Mapping[str, float | int], name: str) -> int | None:
    return int(numbers[name]) if name in numbers else None


def _include_usage(value: object) -> bool:
    """`stream_options` says something about streams alone, and has no effect without one."""
    if value is None:
        return False
    if not isinstance(value, dict):
        raise bad_value("stream_options", "stream_options must be an object")
    for name in value:
        if name not in STREAM_OPTIONS:
            raise not_served("stream_options", f"stream_options may hold {', '.join(STREAM_OPTIONS)}, nothing else")
    return _flag(value, "include_usage")


def _stops(value: object) -> tuple[str, ...]:
    """One text or up to four; each ends the answer, and is not part of it."""
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > MAX_STOPS:
        raise bad_value("stop", f"stop must be a text or a list of at most {MAX_STOPS} texts")
    return tuple(_text(text, "stop") for text in texts)


def _prompt(value: object) -> str:
    """One prompt: a text, or a list that holds one."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]
    if isinstance(value, list) and len(value) > 1 and all(isinstance(one, str) for one in value):
        raise not_served("prompt", "one prompt a request: send several requests, they are decoded together")
    if isinstance(value, list) and value and not isinstance(value[0], str):
        raise not_served("prompt", "a prompt in token ids is not served: send its text")
    return _text(value, "prompt")


def _messages(value: object) -> str:
    """The messages as JSON for the server's chat template: roles and plain texts."""
    if not isinstance(value, list) or not value:
        raise bad_value("messages", "messages must be a list with at least one message")
    messages = [_message(one, f"messages[{index}]") for index, one in enumerate(value)]
    return json.dumps(messages, ensure_ascii=False)


def _message(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise bad_value(where, f"{where} must be an object with role and content")
    for name, content in value.items():
        # An answer that is sent back as a message brings fields that are empty.
        if name not in ("role", "content", "name") and content not in (None, []):
            raise not_served(where, f"{where} may have role, content and name, nothing else")
    role = value.get("role")
    if role not in ROLES:
        raise not_served(where, f"{where}.role must be one of {', '.join(ROLES)}")
    read = {"role": "system" if role == "developer" else str(role), "content": _content(value.get("content"), where)}
    if value.get("name") is not None:
        read["name"] = _text(value["name"], f"{where}.name")
    return read


def _content(value: object, where: str) -> str:
    if not isinstance(value, list):
        return _text(value, f"{where}.content", least=0)
    if not value:
        raise bad_value(where, f"{where}.content is an empty list")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or set(part) != {"type", "text"}:
            raise not_served(where, f"{where}.content may hold parts of type text, nothing else")
        texts.append(_text(part["text"], f"{where}.content", least=0))
    return "".join(texts)


def _text(value: object, where: str, least: int = 1) -> str:
    if not isinstance(value, str):
        raise bad_value(where, f"{where} must be a text")
    if len(value) < least:
        raise bad_value(where, f"{where} is empty")
    if "\0" in value:
        raise bad_value(where, f"{where} holds a NUL character")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise bad_value(where, f"{where} holds half of a surrogate pair") from None
    return value
