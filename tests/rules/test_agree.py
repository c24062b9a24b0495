"""Which pairs of vocabularies go together, and what is shown when they do not."""

from draftyard.rules.agree import agree_vocabularies

WORDS = {index: f"t{index}" for index in range(1000)}


def test_equal_tables_agree() -> None:
    assert agree_vocabularies(WORDS, dict(WORDS)) == []


def test_unrelated_sizes() -> None:
    (problem,) = agree_vocabularies(WORDS, {index: WORDS[index] for index in range(300)})
    assert "700 token ids of target and draft differ (1000 and 300 tokens)" in problem.message
    assert problem.message.count("; id") == 4
    assert "id 300: target 't300', draft none" in problem.message


def test_one_special_token_or_one_late_token() -> None:
    (first,) = agree_vocabularies({**WORDS, 0: "<unk>"}, {**WORDS, 0: "!"})
    assert "1 token ids" in first.message
    assert first.message.endswith("id 0: target '<unk>', draft '!'")
    (late,) = agree_vocabularies(WORDS, {**WORDS, 950: "x"})
    assert late.message.endswith("id 950: target 't950', draft 'x'")
