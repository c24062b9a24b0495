"""Reads the tokenizer of a model directory: its vocabulary, special ids, chat template and what encoding adds."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from draftyard.nouns.digest import Json, digest
from draftyard.nouns.errors import Failure
from draftyard.nouns.source import TokenizerFacts
from draftyard.nouns.tokenizer_behaviour import Vocabulary

# Every tokenizer file that is served, in the order in which the digest takes them.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def read_tokenizer(directory: Path, settings: Mapping[str, Json]) -> TokenizerFacts:
    """Facts of `tokenizer.json` and its companions; `settings` is the parsed `tokenizer_config.json`.

    Failure when there is no `tokenizer.json`, when it cannot be loaded, or when a special token has no id.
    """
    tokenizer = load_tokenizer(directory)
    vocabulary = {index: text for text, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    bos_id = _special_id(tokenizer, settings, "bos_token")
    return TokenizerFacts(
        digest=_files_digest(directory),
        vocabulary_digest=digest([[index, vocabulary[index]] for index in sorted(vocabulary)]),
        vocabulary_size=len(vocabulary),
        largest_id=max(vocabulary),
        bos_id=bos_id,
        eos_id=_special_id(tokenizer, settings, "eos_token"),
        pad_id=_special_id(tokenizer, settings, "pad_token"),
        adds_bos=bos_id is not None and tokenizer.encode("a").ids[:1] == [bos_id],
        chat_template=_chat_template(directory, settings),
    )


def read_vocabulary(directory: Path) -> Vocabulary:
    """Every token by id, and which are control tokens; Failure as for `read_tokenizer`."""
    tokenizer = load_tokenizer(directory)
    added = tokenizer.get_added_tokens_decoder()
    return Vocabulary(
        texts={index: text for text, index in tokenizer.get_vocab(with_added_tokens=True).items()},
        special=frozenset(index for index, token in added.items() if token.special),
    )


def encode_texts(directory: Path, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Ids of each text, without the tokens that the tokenizer would add; Failure as for `read_tokenizer`."""
    encodings = load_tokenizer(directory).encode_batch(list(texts), add_special_tokens=False)
    return tuple(tuple(encoding.ids) for encoding in encodings)


def read_chat_template(directory: Path) -> str | None:
    """The default chat template of a model directory; None when there is none."""
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return _chat_template(directory, settings)


def tokenizer_paths(directory: Path) -> tuple[Path, ...]:
    """The tokenizer files that are there."""
    return tuple(directory / name for name in TOKENIZER_FILES if (directory / name).is_file())


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model directory; Failure when there is none or it cannot be loaded."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        others = [name for name in ("tekken.json", "tokenizer.model") if (directory / name).exists()]
        found = f"; {' and '.join(others)} cannot be read" if others else ""
        raise Failure(f"there is no tokenizer.json{found}", "fetch or save the model with its tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    # The library raises bare Exception for whatever is wrong with the file.
    except Exception as error:
        raise Failure(f"tokenizer.json cannot be loaded: {error}", "fetch the file again") from error
    if tokenizer.get_vocab_size(with_added_tokens=True) == 0:
        raise Failure("tokenizer.json has no tokens", "fetch the file again")
    return tokenizer


def _special_id(tokenizer: Tokenizer, settings: Mapping[str, Json], key: str) -> int | None:
    value = settings.get(key)
    text = value.get("content") if isinstance(value, Mapping) else value
    if text is None:
        return None
    index: int | None = tokenizer.token_to_id(str(text))
    if index is None:
        raise Failure(f"tokenizer_config.json: {key} is {text!r}, which has no id", "correct tokenizer_config.json")
    return index


def _chat_template(directory: Path, settings: Mapping[str, Json]) -> str | None:
    """The template in its own file wins over the one in tokenizer_config.json, as in transformers."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, Mapping)}
        default = named.get("default")
        return default if isinstance(default, str) else None
    return None


def _files_digest(directory: Path) -> str:
    return digest({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tokenizer_paths(directory)})
