"""Words as token ids in the two-row form that the engine takes, and as a bias over the vocabulary."""

from collections.abc import Sequence

from bad_input import BadInput
from tokenizer_files import TextCodec

WordIds = tuple[tuple[int, ...], ...]


def word_ids(codec: TextCodec, words: Sequence[str], name: str) -> WordIds:
    """Each word's ids; commas are ordinary characters; an empty word is refused."""
    found = []
    for word in words:
        ids = tuple(codec.encode(word, add_special_tokens=False).ids)
        if not ids:
            raise BadInput(f"{name} holds {word!r}, which has no tokens: leave it out")
        found.append(ids)
    return tuple(found)


def two_rows(words: WordIds) -> tuple[list[int], list[int]]:
    """Row 0: all ids one after the other; row 1: where each word ends, filled with -1 to the same length."""
    flat = [token_id for word in words for token_id in word]
    ends: list[int] = []
    for word in words:
        ends.append((ends[-1] if ends else 0) + len(word))
    return flat, ends + [-1] * (len(flat) - len(ends))


def batch_of_two_rows(batch: Sequence[WordIds]) -> list[list[list[int]]]:
    """[batch][2][n] with n of the longest; shorter ones are filled with 0 and -1, which end no word."""
    rows = [two_rows(words) for words in batch]
    length = max((len(flat) for flat, _ in rows), default=0)
    return [[flat + [0] * (length - len(flat)), ends + [-1] * (length - len(ends))] for flat, ends in rows]


def vocabulary_bias(
    codec: TextCodec, words: Sequence[str], weights: Sequence[float], vocabulary_size: int
) -> list[float]:
    """One number per token id; a word of several tokens biases each; [] when there is no word."""
    if len(words) != len(weights):
        raise BadInput(f"embedding_bias_words has {len(words)} entries, embedding_bias_weights {len(weights)}")
    if not words:
        return []
    bias = [0.0] * vocabulary_size
    for ids, weight in zip(word_ids(codec, words, "embedding_bias_words"), weights, strict=True):
        for token_id in ids:
            bias[token_id] += weight
    return bias
