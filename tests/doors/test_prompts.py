"""Prompt packs in the four formats, and what is wrong with one that cannot be read."""

import json
from pathlib import Path

import pytest

from draftyard.doors.prompts import pack_digest, read_prompts
from draftyard.nouns.errors import Failure
from draftyard.nouns.prompt import Prompt
from draftyard.rules.prompt_formats import PromptFormat, format_of, parse_prompt

OWN = {"id": "a", "domain": "chat", "split": "test", "length": "short", "messages": [{"role": "user", "content": "Hi"}]}


def pack(path: Path) -> tuple[Prompt, ...]:
    return read_prompts(path, parse_prompt)


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def test_all_formats(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", {**OWN, "max_tokens": 7})
    write(tmp_path / "2.jsonl", {"question_id": 81, "category": "writing", "turns": ["Compose.", "Again."]})
    write(tmp_path / "3.jsonl", {"task_id": 3, "prompt": "Once upon"}, {"task_id": 4, "prompt": "a time"})
    prompts = pack(tmp_path)
    assert [(prompt.id, prompt.domain, prompt.split) for prompt in prompts] == [
        ("a", "chat", "test"),
        ("81", "writing", "test"),
        ("3", "other", "test"),
        ("4", "other", "test"),
    ]
    assert prompts[0].max_tokens == 7
    assert json.loads(prompts[1].chat_json()) == [{"role": "user", "content": "Compose."}]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({**OWN, "tempature": 1}, "unknown keys tempature"),
        ({**OWN, "split": "dev"}, "split is 'dev'"),
        ({**OWN, "messages": []}, "messages must be a list"),
        ({**OWN, "max_tokens": 0}, "max_tokens must be"),
        ({"task_id": 1, "input_ids": [1, 2]}, "token ids cannot be asked"),
        ({"task_id": 1, "prompt": " "}, "the prompt is empty"),
        ({"task_id": 1, "prompt": "x", "output_tokens": 0}, "output_tokens must be"),
        ({"question_id": 1, "turns": [3]}, "turns must be"),
        ({"turns": ["x"]}, "question_id is missing"),
        ({"text": "x"}, "neither messages, turns nor prompt"),
        ([1], "not a JSON object"),
    ],
)
def test_lines_that_cannot_be_read_are_located(tmp_path: Path, line: object, words: str) -> None:
    with pytest.raises(Failure, match="line 1") as caught:
        pack(write(tmp_path / "p.jsonl", line))
    assert words in caught.value.message


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", OWN, {"x": 1}, OWN)
    with pytest.raises(Failure, match="2 problems"):
        pack(path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no prompt pack"):
        pack(tmp_path / "absent")
    with pytest.raises(Failure, match="holds no prompt"):
        pack(write(tmp_path / "p.jsonl"))


def test_the_digest_is_over_the_bytes(tmp_path: Path) -> None:
    before = pack_digest(write(tmp_path / "p.jsonl", OWN))
    assert pack_digest(tmp_path) == before
    assert pack_digest(write(tmp_path / "p.jsonl", {**OWN, "id": "b"})) != before


def test_formats_of_benchmarks_are_told_apart() -> None:
    speed = {
        "question_id": "q1",
        "category": "coding",
        "sub_category": "python",
        "turns": ["Write a loop."],
        "source": "s",
        "src_id": "1",
        "difficulty": None,
        "multiturn": False,
    }
    spec = {"question_id": 81, "category": "translation", "turns": ["Translate."], "reference": ["x"]}
    bench = {"task_id": 7, "prompt": "Once", "output_tokens": 128}
    assert [format_of(line) for line in (OWN, speed, spec, bench)] == list(PromptFormat)
    assert (parse_prompt(speed).domain, parse_prompt(spec).domain, parse_prompt(bench).domain) == (
        "coding",
        "translation",
        "other",
    )
    assert parse_prompt(bench).max_tokens == 128
