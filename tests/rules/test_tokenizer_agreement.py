"""Which pairs of tokenizers go together, and what is shown when they do not."""

import pytest

from draftyard.nouns.tokenizer_behaviour import TokenizerBehaviour, Vocabulary
from draftyard.rules.tokenizer_agreement import PROBES, Agreement, compare_tokenizers, probe_texts

WORDS = {index: f"t{index}" for index in range(1000)}


def behaviour(texts: dict[int, str], special: tuple[int, ...] = (), encodings: int = 0) -> TokenizerBehaviour:
    """A tokenizer that splits every probe into one id."""
    return TokenizerBehaviour(Vocabulary(texts, frozenset(special)), ((encodings,),) * (len(PROBES) + 8))


def compared(first: TokenizerBehaviour, second: TokenizerBehaviour, ending: frozenset[int] = frozenset()) -> Agreement:
    return compare_tokenizers(first, second, probe_texts(first.vocabulary), ending)


def test_equal_tokenizers_agree() -> None:
    assert compared(behaviour(WORDS), behaviour(dict(WORDS))) == Agreement()


@pytest.mark.parametrize(
    ("draft", "count", "shown"),
    [
        ({index: WORDS[index] for index in range(300)}, 700, "id 300: target 't300', draft none"),
        ({**WORDS, 0: "!"}, 1, "id 0: target 't0', draft '!'"),
        ({**WORDS, 950: "x"}, 1, "id 950: target 't950', draft 'x'"),
    ],
    ids=["unrelated sizes", "first token", "one late token"],
)
def test_differing_ids_are_counted_and_the_first_five_shown(draft: dict[int, str], count: int, shown: str) -> None:
    """Unrelated vocabularies drafted nonsense before sizes and texts were compared (ggml-org/llama.cpp#3812)."""
    (problem,) = compared(behaviour(WORDS), behaviour(draft)).problems
    assert f"{count} token ids of target and draft differ (1000 and {len(draft)} tokens)" in problem.message
    assert shown in problem.message
    assert problem.message.count("target '") == min(count, 5)


def test_control_tokens_alone_are_a_note() -> None:
    """Members of a family add control tokens of their own; a draft never proposes them well, and loses nothing else."""
    first = behaviour({**WORDS, 1000: "<think>", 1001: "<tool>"}, (2, 1000, 1001))
    found = compared(first, behaviour({**WORDS, 1000: "<pad>"}, (2, 1000)))
    assert found.problems == ()
    assert "2 control tokens of target and draft differ" in found.notes[0]
    assert "id 1000: target '<think>', draft '<pad>'; id 1001: target '<tool>', draft none" in found.notes[0]


def test_a_control_token_that_is_a_word_in_the_other_is_refused() -> None:
    assert compared(behaviour(WORDS, (5,)), behaviour({**WORDS, 5: "word"})).problems


def test_other_ends_of_texts_are_refused() -> None:
    """A draft that ends texts with another token of that id was trained on other texts."""
    first, second = behaviour({**WORDS, 1000: "<end>"}, (1000,)), behaviour({**WORDS, 1000: "<eos>"}, (1000,))
    assert compared(first, second).problems == ()
    (problem,) = compared(first, second, frozenset({1000})).problems
    assert "id 1000: target '<end>', draft '<eos>'" in problem.message


def test_the_same_words_split_otherwise_are_refused_by_the_text() -> None:
    (problem,) = compared(behaviour(WORDS), behaviour(WORDS, encodings=1)).problems
    assert problem.message == "target and draft split 'Hello world' differently: [0] and [1]"


def test_control_tokens_are_probed_inside_texts() -> None:
    texts = probe_texts(Vocabulary({7: "<s>", 9: "</s>"}, frozenset({7, 9})))
    assert texts[-2:] == ("a<s>b <s> c", "a</s>b </s> c")
