"""The prompt pack: what the README promises about counts, splits and lengths."""

import re
from collections import Counter
from pathlib import Path

import pytest
from engines.demo.write_prompts import SPLITS, expand, pack_lines, read_groups

from draftyard.doors.prompts import read_prompts
from draftyard.nouns.prompt import Prompt
from draftyard.rules.prompt_formats import parse_prompt

PACK = Path(__file__).parents[2] / "engines/demo/prompts"
TARGET = Path(__file__).parents[2] / "engines/out/models/smollm2-135m-instruct"
DOMAINS = {
    "chat",
    "clinical_notes",
    "edit",
    "finance_tables",
    "json_sql",
    "legal_argument",
    "math",
    "multilingual",
    "python",
    "rag_quote",
}


@pytest.fixture(scope="module")
def pack() -> tuple[Prompt, ...]:
    return read_prompts(PACK, parse_prompt)


def text(prompt: Prompt) -> str:
    return prompt.messages[0].content


def runs(words: str, length: int) -> set[tuple[str, ...]]:
    parts = re.findall(r"\w+", words.lower())
    return {tuple(parts[at : at + length]) for at in range(len(parts) - length + 1)}


def test_every_domain_has_enough_prompts_of_each_split(pack: tuple[Prompt, ...]) -> None:
    counts = Counter((prompt.domain, prompt.split) for prompt in pack)
    assert {domain for domain, _ in counts} == DOMAINS
    for domain in DOMAINS:
        assert counts[domain, "test"] >= 12
        assert counts[domain, "train"] >= 12


def test_the_readme_states_the_counts(pack: tuple[Prompt, ...]) -> None:
    counts = Counter((prompt.domain, prompt.split) for prompt in pack)
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|", (PACK / "README.md").read_text(encoding="utf-8"), re.M)
    assert {(domain, int(test), int(train)) for domain, test, train in rows} == {
        (domain, counts[domain, "test"], counts[domain, "train"]) for domain in DOMAINS
    }


def test_ids_and_texts_are_unique(pack: tuple[Prompt, ...]) -> None:
    assert len({prompt.id for prompt in pack}) == len(pack)
    assert len({text(prompt) for prompt in pack}) == len(pack)


def test_each_prompt_is_one_question_with_a_limit(pack: tuple[Prompt, ...]) -> None:
    for prompt in pack:
        assert [message.role for message in prompt.messages] == ["user"]
        assert text(prompt).strip() == text(prompt)
        assert prompt.length in ("short", "long")
        assert prompt.max_tokens is not None and 100 <= prompt.max_tokens <= 256


def test_splits_share_no_run_of_eight_words(pack: tuple[Prompt, ...]) -> None:
    trained = set[tuple[str, ...]]().union(*(runs(text(prompt), 8) for prompt in pack if prompt.split == "train"))
    for prompt in pack:
        if prompt.split == "test":
            assert not runs(text(prompt), 8) & trained, prompt.id


def test_long_prompts_are_long(pack: tuple[Prompt, ...]) -> None:
    for prompt in pack:
        words = len(re.findall(r"\w+", text(prompt)))
        assert words >= 40 if prompt.length == "long" else words < 60, (prompt.id, words)


@pytest.mark.parametrize("split", SPLITS)
def test_the_pack_is_what_the_sources_make(split: str) -> None:
    assert "\n".join(pack_lines(split)) + "\n" == (PACK / f"{split}.jsonl").read_text(encoding="utf-8")


def test_unknown_keys_of_a_source_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "train.yaml"
    source.write_text("chat:\n  - {length: short, max_tokens: 9, templates: [hi], slot: {}}\n", encoding="utf-8")
    with pytest.raises(TypeError, match="slot"):
        read_groups(source)


def test_expansion_meets_every_combination_once(tmp_path: Path) -> None:
    source = tmp_path / "train.yaml"
    source.write_text(
        "math:\n  - length: short\n    max_tokens: 9\n    templates: ['{a} and {b}', 'only {a}']\n"
        "    slots: {a: '1..3', b: [x, y]}\n",
        encoding="utf-8",
    )
    (group,) = read_groups(source)
    assert sorted(expand(group)) == sorted([f"{a} and {b}" for a in "123" for b in "xy"] + [f"only {a}" for a in "123"])


@pytest.mark.skipif(
    not TARGET.is_dir(), reason="the demo target was not made (draftyard demo-model engines/out/models)"
)
def test_prompts_fit_the_demo_target(pack: tuple[Prompt, ...]) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    assert all(len(tokenizer.encode(text(prompt)).ids) < 900 for prompt in pack)
