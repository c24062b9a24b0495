"""Whether two tokenizers are one, by what they do: the text of every id, and the ids of the same texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftyard.nouns.errors import Problem
from draftyard.nouns.tokenizer_behaviour import TokenizerBehaviour, Vocabulary

_HINT = "choose a draft of the target's own family, with the same tokenizer"
_SHOWN = 5

# Where tokenizers with equal vocabularies part: blanks at both ends and in rows, runs of digits, line ends, case and
# accents (composed and not), scripts without blanks, emoji of several code points, code, and bytes that are no letter.
PROBES = (
    "Hello world",
    " Hello  world ",
    "   indented\tand\ttabbed",
    "1234567890 12,345.678 3.14159 2026-11-30",
    "line one\nline two\r\n\n\nline five",
    "don't they'll I'VE we’d",
    "naïve café cafe\u0301 ŻÓŁW ﬁne ①",
    "Привет, мир! 你好，世界。 こんにちは 안녕하세요 שלום مرحبا",
    "🙂🙃👩‍👩‍👧 🇨🇭",
    "def draft(tokens):\n    return [token for token in tokens if token >= 0][:4]  # ok",
    '{"key": [1, 2.5e-3, null], "url": "http://localhost:8000/v2?q=a&b=c"}',
    "<<a <<b >>|||~~~ \u00a0\u200b\u2028x\x00y",
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a comparison came to: problems that forbid a pair, and differences that do no harm."""

    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def probe_texts(target: Vocabulary) -> tuple[str, ...]:
    """The texts that both tokenizers encode; control tokens are also written out in the middle of a text."""
    written = [target.texts[index] for index in sorted(target.special)[:8]]
    return (*PROBES, *(f"a{text}b {text} c" for text in written))


def compare_tokenizers(
    target: TokenizerBehaviour, draft: TokenizerBehaviour, probes: Sequence[str], ending: frozenset[int] = frozenset()
) -> Agreement:
    """Compare ids and encodings. Other texts of control tokens alone are a note, for drafts with them are only refused.

    `ending` are control tokens of the target that must be the draft's too: those that begin and end a text.
    """
    first, second = target.vocabulary, draft.vocabulary
    differing = differing_ids(first, second)
    control = [index for index in differing if _is_control(index, first, second)]
    if not differing:
        return Agreement(tuple(encoding_problems(target, draft, probes)))
    if len(control) < len(differing) or ending & set(control):
        return Agreement((difference_problem(first, second, differing),))
    shown = _shown(first, second, control)
    note = f"{len(control)} control tokens of target and draft differ, and are never drafted well: {shown}"
    return Agreement(tuple(encoding_problems(target, draft, probes[: len(PROBES)])), (note,))


def differing_ids(target: Vocabulary, draft: Vocabulary) -> list[int]:
    """Ids whose text is not the same in both, in order."""
    first, second = target.texts, draft.texts
    return [index for index in sorted(set(first) | set(second)) if first.get(index) != second.get(index)]


def difference_problem(target: Vocabulary, draft: Vocabulary, differing: Sequence[int]) -> Problem:
    """The count and the first five ids that differ, with both texts."""
    counts = f"{len(target.texts)} and {len(draft.texts)} tokens"
    shown = _shown(target, draft, differing)
    return Problem(f"{len(differing)} token ids of target and draft differ ({counts}): {shown}", _HINT)


def encoding_problems(target: TokenizerBehaviour, draft: TokenizerBehaviour, probes: Sequence[str]) -> list[Problem]:
    """The first probe that the two split differently, though every id has the same text in both."""
    for text, first, second in zip(probes, target.encodings, draft.encodings, strict=False):
        if first != second:
            words = f"target and draft split {text!r} differently: {list(first[:8])} and {list(second[:8])}"
            return [Problem(words, _HINT)]
    return []


def _is_control(index: int, target: Vocabulary, draft: Vocabulary) -> bool:
    """True when the id stands for a control token wherever it stands for anything."""
    known = [one for one in (target, draft) if index in one.texts]
    return all(index in one.special for one in known)


def _shown(target: Vocabulary, draft: Vocabulary, ids: Sequence[int]) -> str:
    return "; ".join(
        f"id {index}: target {_text(target, index)}, draft {_text(draft, index)}" for index in ids[:_SHOWN]
    )


def _text(vocabulary: Vocabulary, index: int) -> str:
    return repr(vocabulary.texts[index]) if index in vocabulary.texts else "none"
