"""Whether a draft model goes with a target: tokenizers compared token by token, padding forgiven, positions enough."""

from draftyard.nouns.errors import Problem
from draftyard.nouns.lane import Lane
from draftyard.nouns.network import Network
from draftyard.nouns.recipe import Limits
from draftyard.nouns.source import Source
from draftyard.nouns.tokenizer_behaviour import TokenizerBehaviour
from draftyard.rules.tokenizer_agreement import Agreement, compare_tokenizers, probe_texts


def agree(
    target: Source,
    draft: Source,
    limits: Limits,
    behaviours: tuple[TokenizerBehaviour, TokenizerBehaviour] | None = None,
    lanes: tuple[Lane, ...] = (),
) -> Agreement:
    """Whether `draft` can draft for `target`; notes are differences that do no harm.

    Tokenizers are equal when every id has the same text in both and both split the same texts alike; rows of the
    embedding beyond the largest id are padding and may differ. `behaviours` (target's, draft's) are needed unless the
    two have the very same tokenizer files.
    """
    if draft.path == target.path:
        problem = Problem(
            "the draft is the target itself, which can only slow it down", "give a smaller model as draft"
        )
        return Agreement((problem,))
    compared = Agreement()
    if behaviours is not None:
        first = behaviours[0].vocabulary
        begins = () if target.tokenizer.bos_id is None else (target.tokenizer.bos_id,)
        ending = frozenset((*target.end_ids, *begins))
        compared = compare_tokenizers(*behaviours, probe_texts(first), ending)
    problems = (*position_problems(draft.network, "draft", limits), *compared.problems)
    return Agreement(problems, () if problems else (*compared.notes, *agreement_notes(target, draft, lanes)))


def same_tokenizer(target: Source, draft: Source) -> bool:
    """True when the files of both tokenizers are the same."""
    return draft.tokenizer.digest == target.tokenizer.digest


def agreement_notes(target: Source, draft: Source, lanes: tuple[Lane, ...] = ()) -> tuple[str, ...]:
    """Differences that do no harm, for people: the target's side is what counts in each."""
    notes = []
    if draft.network.vocab_size != target.network.vocab_size:
        notes.append(
            f"embeddings are padded differently: target {target.network.vocab_size} rows, "
            f"draft {draft.network.vocab_size}; effective vocabulary {target.tokenizer.largest_id + 1}"
        )
        if Lane.TENSORRT in lanes:
            # NVIDIA/TensorRT-LLM#2789: the accept step copies logits of one width into a buffer of the other.
            notes.append("logits of different widths cannot be compared: the tensorrt lane accepts drafts by token ids")
    if draft.tokenizer.adds_bos != target.tokenizer.adds_bos:
        adding = "target" if target.tokenizer.adds_bos else "draft"
        notes.append(f"only the tokenizer of the {adding} adds a first token; the target's ids are used for both")
    if draft.end_ids != target.end_ids:
        ends = f"target {_listed(target.end_ids)}, draft {_listed(draft.end_ids)}"
        notes.append(f"texts end with other ids: {ends}; the target's are used for both")
    if draft.tokenizer.chat_template != target.tokenizer.chat_template:
        notes.append("chat templates differ: the target's is used for both")
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


def _listed(ids: tuple[int, ...]) -> str:
    return ", ".join(str(index) for index in ids) or "none"
