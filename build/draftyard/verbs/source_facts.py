"""Puts the facts of a model's or a speculator's directory into one flat value, for people and for programs."""

from pathlib import Path

from draftyard.nouns.digest import Json
from draftyard.nouns.source import Source
from draftyard.nouns.speculator_source import SpeculatorSource
from draftyard.verbs.inspect import inspect, inspect_speculator, speculator_kind


def directory_facts(directory: Path) -> dict[str, Json]:
    """The facts of a directory, whichever of the two it holds; Failure names every contradiction at once."""
    if speculator_kind(directory) is not None:
        return speculator_facts(inspect_speculator(directory))
    return source_facts(inspect(directory))


def speculator_facts(source: SpeculatorSource) -> dict[str, Json]:
    """Name -> value; sizes in elements. What a kind does not have is left out."""
    network = source.network
    facts: dict[str, Json] = {
        "path": source.path,
        "digest": source.digest,
        "speculator": source.kind.value,
        "weight_type": source.weight_type.value,
        "size_bytes": source.size_bytes,
        "target_hidden_size": network.target_hidden_size,
        "vocab_size": network.vocab_size,
        "draft_vocab_size": network.draft_vocab_size,
        "own_head": network.own_head,
        "own_embedding": network.own_embedding,
    }
    if network.decoder is None:
        facts |= {"heads": network.heads, "blocks_per_head": network.head_layers}
    else:
        decoder = network.decoder
        facts |= {
            "hidden_size": decoder.hidden_size,
            "layers": decoder.layers,
            "attention_heads": decoder.heads,
            "kv_heads": decoder.kv_heads,
            "head_size": decoder.head_size,
            "intermediate_size": decoder.intermediate_size,
            "max_position_embeddings": decoder.max_position_embeddings,
        }
    return {**facts, "notes": list(source.notes)}


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
