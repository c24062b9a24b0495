"""Puts the facts of a model directory into one flat value, for people and for programs."""

from draftyard.nouns.digest import Json
from draftyard.nouns.source import Source


def source_facts(source: Source) -> dict[str, Json]:
    """Name -> value; sizes in elements, lengths in tokens."""
    network, tokenizer = source.network, source.tokenizer
    return {
        "path": source.path,
        "digest": source.digest,
        "family": network.family,
        "architecture": network.architecture,
        "parameters": source.parameter_count,
        "weight_type": source.weight_type.value,
        "layers": network.layers,
        "hidden_size": network.hidden_size,
        "intermediate_size": network.intermediate_size,
        "heads": network.heads,
        "kv_heads": network.kv_heads,
        "head_size": network.head_size,
        "vocab_size": network.vocab_size,
        "max_position_embeddings": network.max_position_embeddings,
        "tied_head": network.tied_head,
        "tokenizer_size": tokenizer.vocabulary_size,
        "has_chat_template": tokenizer.chat_template is not None,
        "end_ids": list(source.end_ids),
        "notes": list(source.notes),
    }
