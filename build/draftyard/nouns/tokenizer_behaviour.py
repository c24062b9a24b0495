"""What a tokenizer does to texts, so that two can be held against each other."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Text of every token by id, added tokens too; `special` are the ids of control tokens, which stand for no text."""

    texts: Mapping[int, str]
    special: frozenset[int]


@dataclass(frozen=True, slots=True)
class TokenizerBehaviour:
    """A vocabulary, and the ids of some probe texts, encoded without the tokens that a tokenizer adds by itself."""

    vocabulary: Vocabulary
    encodings: tuple[tuple[int, ...], ...]
