"""From the bytes of a request to checked prompt ids."""

from collections.abc import Sequence
from dataclasses import dataclass

from bad_input import BadInput
from tokenizer_files import SpecialToken, TextCodec


@dataclass(frozen=True)
class Limits:
    """What the engine was built for, in tokens; None where it is not known here."""

    max_input_len: int | None
    max_seq_len: int | None


def readable(raw: bytes, name: str) -> str:
    """Bytes to text; not UTF-8 or a NUL character is refused."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02X}") from None
    if "\0" in text:
        raise BadInput(f"{name} holds a NUL character at position {text.index(chr(0))}")
    return text


def prompt_ids(codec: TextCodec, text: str, bos: SpecialToken | None, add_special_tokens: bool) -> tuple[int, ...]:
    """Encode a prompt; a text that brings its own beginning token gets no second one."""
    if text == "":
        raise BadInput("text_input is empty: send at least one character")
    has_bos = bos is not None and text.startswith(bos.text)
    ids = tuple(codec.encode(text, add_special_tokens=add_special_tokens and not has_bos).ids)
    if not ids:
        raise BadInput("text_input has no tokens: it holds nothing that the tokenizer keeps")
    return ids


def check_lengths(prompt_tokens: int, max_tokens: int, limits: Limits) -> None:
    """Refuse what the engine could not hold, before it is asked."""
    if max_tokens < 1:
        raise BadInput(f"max_tokens is {max_tokens}: ask for at least 1 token")
    if limits.max_input_len is not None and prompt_tokens > limits.max_input_len:
        raise BadInput(
            f"the prompt has {prompt_tokens} tokens, the engine takes {limits.max_input_len}: shorten the prompt"
        )
    if limits.max_seq_len is not None and prompt_tokens + max_tokens > limits.max_seq_len:
        raise BadInput(
            f"prompt ({prompt_tokens} tokens) and max_tokens ({max_tokens}) exceed the engine's "
            f"{limits.max_seq_len} tokens: ask for at most {limits.max_seq_len - prompt_tokens}"
        )


def check_token_id(value: int, vocabulary_size: int, name: str) -> int:
    """A token id, or -1 for none."""
    if value < -1 or value >= vocabulary_size:
        raise BadInput(f"{name} is {value}: token ids run from 0 to {vocabulary_size - 1}, -1 means none")
    return value


def padded(rows: Sequence[Sequence[int]], fill: int) -> list[list[int]]:
    """Rows of one length, filled up at the end."""
    length = max(len(row) for row in rows)
    return [[*row, *([fill] * (length - len(row)))] for row in rows]
