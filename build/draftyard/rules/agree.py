"""Whether a draft model goes with a target: tokenizers compared token by token, padding forgiven, positions enough."""

from collections.abc import Mapping
from typing import TypeAlias

from draftyard.nouns.errors import Problem
from draftyard.nouns.network import Network
from draftyard.nouns.recipe import Limits
from draftyard.nouns.source import Source

Tables: TypeAlias = tuple[Mapping[int, str], Mapping[int, str]]

_HINT = "choose a draft of the target's own family, with the same tokenizer"


def agree(target: Source, draft: Source, limits: Limits, tables: Tables | None = None) -> list[Problem]:
    """Why `draft` cannot draft for `target`; empty when it can.

    Vocabularies are equal when every id has the same text in both; rows of the embedding beyond the largest id are
    padding and may differ. `tables` (target's, draft's) let the message show the ids that differ.
    """
    if draft.path == target.path:
        return [Problem("the draft is the target itself, which can only slow it down", "give a smaller model as draft")]
    problems = position_problems(draft.network, "draft", limits)
    if same_vocabulary(target, draft):
        return problems
    if tables is not None:
        problems.extend(agree_vocabularies(*tables))
    else:
        problems.append(
            Problem(
                f"target and draft have different vocabularies ({target.tokenizer.vocabulary_size} and "
                f"{draft.tokenizer.vocabulary_size} tokens)",
                _HINT,
            )
        )
    return problems


def same_vocabulary(target: Source, draft: Source) -> bool:
    """True when every id has the same text in both tokenizers."""
    return draft.tokenizer.vocabulary_digest == target.tokenizer.vocabulary_digest


def agree_vocabularies(target: Mapping[int, str], draft: Mapping[int, str]) -> list[Problem]:
    """Compare two tables of id -> text; one problem with the count and the first five ids that differ."""
    differing = [index for index in sorted(set(target) | set(draft)) if target.get(index) != draft.get(index)]
    if not differing:
        return []
    shown = "; ".join(
        f"id {index}: target {_text(target, index)}, draft {_text(draft, index)}" for index in differing[:5]
    )
    counts = f"{len(target)} and {len(draft)} tokens"
    return [Problem(f"{len(differing)} token ids of target and draft differ ({counts}): {shown}", _HINT)]


def agreement_notes(target: Source, draft: Source) -> tuple[str, ...]:
    """Differences that do no harm, for people."""
    notes = []
    if draft.network.vocab_size != target.network.vocab_size:
        notes.append(
            f"embeddings are padded differently: target {target.network.vocab_size} rows, "
            f"draft {draft.network.vocab_size}; effective vocabulary {target.tokenizer.largest_id + 1}"
        )
    if draft.tokenizer.adds_bos != target.tokenizer.adds_bos:
        adding = "target" if target.tokenizer.adds_bos else "draft"
        notes.append(f"only the tokenizer of the {adding} adds a first token; the target's ids are used for both")
    return tuple(notes)


def position_problems(network: Network, role: str, limits: Limits) -> list[Problem]:
    """The engine's `max_seq_len` must not exceed the positions the model was trained for."""
    positions = network.max_position_embeddings
    if limits.max_seq_len <= positions:
        return []
    return [
        Problem(
            f"max_seq_len {limits.max_seq_len} exceeds the {role}'s max_position_embeddings {positions}",
            f"lower limits.max_seq_len to {positions} or less",
        )
    ]


def _text(table: Mapping[int, str], index: int) -> str:
    return repr(table[index]) if index in table else "none"
