"""Reads a tokenizer directory: `tokenizer.json` and what `tokenizer_config.json` says about special tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer


class Encoding(Protocol):
    """What encoding a text gives."""

    @property
    def ids(self) -> list[int]:
        """Token ids."""
        ...


class TextCodec(Protocol):
    """The part of a tokenizer that the guests use."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Encoding:
        """Text to token ids."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Token ids to text."""
        ...

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Number of token ids."""
        ...

    def id_to_token(self, id: int) -> str | None:
        """The token's spelling in the vocabulary."""
        ...

    def token_to_id(self, token: str) -> int | None:
        """The id of a spelling."""
        ...


@dataclass(frozen=True)
class SpecialToken:
    """A token with a role, as text and as id."""

    text: str
    id: int


@dataclass(frozen=True)
class TokenizerBundle:
    """One tokenizer directory, read. `byte_ids` are the byte-fallback tokens (<0x00> to <0xFF>), `special_ids` those
    that decoding leaves out when it skips special tokens.
    """

    codec: TextCodec
    bos: SpecialToken | None
    eos: SpecialToken | None
    pad: SpecialToken | None
    chat_template: str | None
    byte_ids: frozenset[int]
    special_ids: frozenset[int]


def special_token(settings: Mapping[str, object], key: str, codec: TextCodec) -> SpecialToken | None:
    """The token that `key` names; a text that is not in the vocabulary counts as none."""
    entry = settings.get(key)
    text = entry.get("content") if isinstance(entry, dict) else entry
    if not isinstance(text, str):
        return None
    token_id = codec.token_to_id(text)
    return None if token_id is None else SpecialToken(text, token_id)


def chat_template(directory: Path, settings: Mapping[str, object]) -> str | None:
    """The template named `default`, from `chat_template.jinja` or from the settings."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    entry = settings.get("chat_template")
    if isinstance(entry, list):
        named = {str(item["name"]): str(item["template"]) for item in entry}
        return named.get("default")
    return entry if isinstance(entry, str) else None


def read_tokenizer(directory: Path) -> TokenizerBundle:
    """Read a tokenizer directory; ValueError says which file is missing or broken."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{file} does not exist")
    codec = Tokenizer.from_file(str(file))
    codec.no_truncation()
    codec.no_padding()
    settings_file = directory / "tokenizer_config.json"
    settings: dict[str, object] = (
        json.loads(settings_file.read_text(encoding="utf-8")) if settings_file.is_file() else {}
    )
    bytes_found = (codec.token_to_id(f"<0x{value:02X}>") for value in range(256))
    return TokenizerBundle(
        codec=codec,
        bos=special_token(settings, "bos_token", codec),
        eos=special_token(settings, "eos_token", codec),
        pad=special_token(settings, "pad_token", codec),
        chat_template=chat_template(directory, settings),
        byte_ids=frozenset(token_id for token_id in bytes_found if token_id is not None),
        special_ids=frozenset(key for key, token in codec.get_added_tokens_decoder().items() if token.special),
    )
