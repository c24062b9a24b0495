"""Reads the texts of a calibration from local files and turns them into the model's own tokens."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from draftyard.doors.tokenizer_files import load_tokenizer, read_chat_template
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure
from draftyard.nouns.prompt import Message

LAYOUT = (
    "give a local file with one text a line, or JSONL with a text field or messages "
    '({"text": "..."} or {"messages": [{"role": "user", "content": "..."}]}), or a directory of .txt and .jsonl files'
)
CalibrationText: TypeAlias = "str | tuple[Message, ...]"


@dataclass(frozen=True, slots=True)
class CalibrationFiles:
    """The files of a calibration, in order, and the SHA-256 over their bytes; names are no part of it."""

    path: Path
    files: tuple[Path, ...]
    digest: str


def find_calibration_files(path: Path) -> CalibrationFiles:
    """The files at a path, whatever their names. Failure says which layout is expected; nothing is ever fetched."""
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".txt", ".jsonl") and file.is_file())
        if not files:
            raise Failure(f"{path} holds neither .txt nor .jsonl files", LAYOUT)
    else:
        raise Failure(f"no calibration texts at {path}; data sets are never looked up by name", LAYOUT)
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes())
    return CalibrationFiles(path, tuple(files), total.hexdigest())


def read_calibration_texts(files: CalibrationFiles, text_field: str, most: int) -> tuple[CalibrationText, ...]:
    """The first `most` texts; a file whose first line is a JSON object is JSONL, any other is text line by line.

    Failure names the first line that cannot be read, or says that there is no text.
    """
    texts: list[CalibrationText] = []
    for file in files.files:
        for text in _texts(file, text_field):
            texts.append(text)
            if len(texts) == most:
                return tuple(texts)
    if not texts:
        raise Failure(f"{files.path} holds no text", LAYOUT)
    return tuple(texts)


def _texts(file: Path, text_field: str) -> Iterator[CalibrationText]:
    raw = file.read_bytes()
    if raw.startswith(b"PAR1"):
        raise Failure(f"{file.name} is a Parquet file, which is not read", LAYOUT)
    try:
        lines = [(number, line.strip()) for number, line in enumerate(raw.decode("utf-8-sig").splitlines(), 1)]
    except UnicodeDecodeError as error:
        raise Failure(f"{file.name} is no UTF-8 text: {error.reason} at byte {error.start}", LAYOUT) from error
    filled = [(number, line) for number, line in lines if line]
    if any("\0" in line for _, line in filled[:100]):
        raise Failure(f"{file.name} is no text", LAYOUT)
    if not filled or not _is_object(filled[0][1]):
        yield from (line for _, line in filled)
        return
    for number, line in filled:
        try:
            yield _text_of(json.loads(line), text_field)
        except ValueError as error:
            raise Failure(f"{file.name} line {number}: {error}", LAYOUT) from error


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _text_of(entry: object, text_field: str) -> CalibrationText:
    if not isinstance(entry, dict):
        raise ValueError("not a JSON object")
    if isinstance(entry.get(text_field), str):
        return str(entry[text_field])
    listed = entry.get("messages")
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"neither {text_field!r} (text_field) nor messages; its keys are {', '.join(entry) or 'none'}")
    if not all(isinstance(turn, dict) and {"role", "content"} <= set(turn) for turn in listed):
        raise ValueError("each message needs a role and a content")
    return tuple(Message(str(turn["role"]), str(turn["content"])) for turn in listed)


def encode_texts(directory: Path, texts: tuple[CalibrationText, ...], max_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Token ids of each text by the model's own tokenizer, at most `max_tokens` from the start.

    Plain texts get the special tokens that the tokenizer adds; messages are rendered by the model's chat template.
    Failure when a template is missing or refuses the messages. Texts without a token are left out.
    """
    tokenizer = load_tokenizer(directory)
    template = _ChatTemplate(directory) if any(not isinstance(text, str) for text in texts) else None
    encoded = []
    for text in texts:
        if isinstance(text, str):
            ids = tokenizer.encode(text).ids
        else:
            if template is None:
                raise AssertionError("messages have a template")
            ids = tokenizer.encode(template.render(text), add_special_tokens=False).ids
        encoded.append(tuple(ids[:max_tokens]))
    return tuple(ids for ids in encoded if ids)


class _ChatTemplate:
    """A model's chat template. It gets no clock: a calibration of the same texts is the same on every day."""

    def __init__(self, directory: Path) -> None:
        # Only messages need templates, and plans of recipes read neither.
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        template = read_chat_template(directory)
        if template is None:
            raise Failure(
                "the calibration texts are messages, but the model has no chat template",
                "give plain texts, or the model's chat_template.jinja",
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._words = _special_words(directory)
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateError as error:
            raise Failure(f"the chat template cannot be read: {error}", "fetch the tokenizer files again") from error

    def render(self, messages: tuple[Message, ...]) -> str:
        """The conversation as the model reads it, up to where its answer begins."""
        import jinja2

        listed = [{"role": message.role, "content": message.content} for message in messages]
        asked = messages[-1].role != "assistant"
        try:
            return self._template.render(messages=listed, add_generation_prompt=asked, **self._words)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise Failure(f"the chat template refuses calibration messages: {error}", "give plain texts") from error


def _special_words(directory: Path) -> dict[str, str]:
    path = directory / "tokenizer_config.json"
    settings: Mapping[str, Json] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    words = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(key)
        text = value.get("content") if isinstance(value, Mapping) else value
        words[key] = str(text) if text is not None else ""
    return words


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)
