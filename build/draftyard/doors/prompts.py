"""Reads prompt packs: the own format, question files with turns, and benchmark files with plain prompts."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from draftyard.nouns.errors import Failure, Problem, raise_problems
from draftyard.nouns.prompt import Message, Prompt

OWN_KEYS = {"id", "domain", "split", "length", "messages", "max_tokens"}


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """All prompts of a JSONL file, or of every `*.jsonl` in a directory, by name of file.

    Accepts own lines (id, domain, split, length, messages, max_tokens), lines with `turns` (MT-bench, Spec-Bench,
    SPEED-Bench; the first turn is asked) and lines with `task_id` and `prompt` (trtllm-bench). Files of others have
    no splits: all of theirs is `test`. Failure lists every line that cannot be read.
    """
    files = pack_files(path)
    prompts: list[Prompt] = []
    problems: list[Problem] = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                prompts.append(parse_prompt(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                problems.append(Problem(f"{file.name} line {number}: {error}", "see the formats in the documentation"))
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            problems.append(Problem(f"prompt id {prompt.id!r} appears twice", "give each prompt its own id"))
        seen.add(prompt.id)
    raise_problems(problems)
    if not prompts:
        raise Failure(f"{path} holds no prompt", "point verify.prompts to a JSONL file with one prompt a line")
    return tuple(prompts)


def pack_files(path: Path) -> tuple[Path, ...]:
    """The files of a pack; Failure when there is none."""
    if path.is_file():
        return (path,)
    files = tuple(sorted(path.glob("*.jsonl"))) if path.is_dir() else ()
    if not files:
        raise Failure(f"no prompt pack at {path}", "set verify.prompts to a JSONL file or a directory of them")
    return files


def pack_digest(path: Path) -> str:
    """SHA-256 over the bytes of the pack's files, in order."""
    sha = hashlib.sha256()
    for file in pack_files(path):
        sha.update(file.read_bytes())
    return sha.hexdigest()


def parse_prompt(line: Mapping[str, object]) -> Prompt:
    """One line as a prompt; ValueError says what is wrong with it."""
    if not isinstance(line, dict):
        raise ValueError("not a JSON object")
    if "messages" in line:
        return _own(line)
    if "turns" in line:
        turns = line["turns"]
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
            raise ValueError("turns must be a list of texts")
        return _foreign(str(line["question_id"]), str(line.get("category", "other")), turns[0])
    if "prompt" in line:
        text = line["prompt"]
        if not isinstance(text, str):
            raise ValueError("prompt must be a text")
        return _foreign(str(line["task_id"]), "other", text)
    raise ValueError("neither messages, turns nor prompt")


def _own(line: Mapping[str, object]) -> Prompt:
    unknown = sorted(set(line) - OWN_KEYS)
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}")
    listed = line["messages"]
    if not isinstance(listed, list) or not listed:
        raise ValueError("messages must be a list of role and content")
    split = str(line["split"])
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}: train or test")
    limit = line.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ValueError("max_tokens must be a whole number above 0")
    messages = tuple(Message(str(entry["role"]), str(entry["content"])) for entry in listed)
    return Prompt(str(line["id"]), str(line["domain"]), split, str(line.get("length", "")), messages, limit)


def _foreign(identity: str, domain: str, text: str) -> Prompt:
    return Prompt(identity, domain, "test", "", (Message("user", text),))
