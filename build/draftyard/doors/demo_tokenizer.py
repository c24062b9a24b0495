"""Writes the tokenizer files of a Hugging Face model directory from a GGUF vocabulary."""

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from draftyard.doors.gguf_source import GgufVocabulary
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure

_CONTROL = 3
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def write_tokenizer(directory: Path, vocabulary: GgufVocabulary, max_positions: int) -> None:
    """Write `TOKENIZER_FILES`; the bytes depend on the vocabulary alone, not on a library's version.

    Failure for a pre-tokenizer other than `smollm`, and when the `tokenizers` library cannot load the result.
    """
    if vocabulary.pre_tokenizer != "smollm":
        raise Failure(
            f"the vocabulary asks for the pre-tokenizer {vocabulary.pre_tokenizer!r}, only 'smollm' is known",
            "use a SmolLM2 file",
        )
    special = special_tokens(vocabulary)
    text = _text(tokenizer_document(vocabulary))
    try:
        Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise Failure(f"the vocabulary makes no tokenizer: {error}", "fetch the file again") from error
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    (directory / "special_tokens_map.json").write_text(_text(special), encoding="utf-8")
    settings: dict[str, Json] = {
        **special,
        "add_bos_token": False,
        "add_prefix_space": False,
        "chat_template": vocabulary.chat_template,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / "tokenizer_config.json").write_text(_text(settings), encoding="utf-8")


def special_tokens(vocabulary: GgufVocabulary) -> dict[str, Json]:
    """The tokens with a duty, and all other control tokens, as `special_tokens_map.json` lists them."""
    tokens = vocabulary.tokens
    controls = [text for text, kind in zip(tokens, vocabulary.token_types, strict=True) if kind == _CONTROL]
    return {
        "additional_special_tokens": controls,
        "bos_token": tokens[vocabulary.bos_token_id],
        "eos_token": tokens[vocabulary.eos_token_id],
        "pad_token": tokens[vocabulary.padding_token_id],
        "unk_token": tokens[vocabulary.unknown_token_id],
    }


def tokenizer_document(vocabulary: GgufVocabulary) -> dict[str, Json]:
    """`tokenizer.json` of a byte-level BPE whose digits stand alone.

    `smollm` means: every digit is its own piece, then GPT-2's split (llama.cpp, llama-vocab.cpp, the regular
    expressions of LLAMA_VOCAB_PRE_TYPE_SMOLLM). The order matters: spaces before a digit are then one piece.
    """
    added: list[Json] = [
        _added_token(index, text)
        for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.token_types, strict=True))
        if kind == _CONTROL
    ]
    byte_level: dict[str, Json] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(vocabulary.tokens)},
            "merges": [merge.split(" ", 1) for merge in vocabulary.merges],
        },
    }


def _added_token(index: int, text: str) -> Json:
    return {
        "id": index,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _text(value: Mapping[str, Json]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
