"""Reads the files of prompt packs; what a line means is for whoever asks to say."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from draftyard.nouns.errors import Failure, Problem, raise_problems
from draftyard.nouns.prompt import Prompt


def read_prompts(path: Path, parse: Callable[[object], Prompt]) -> tuple[Prompt, ...]:
    """All prompts of a JSONL file, or of every `*.jsonl` in a directory, by name of file.

    `parse` makes a prompt of a line's JSON, or raises ValueError. Failure lists every line that cannot be read.
    """
    files = pack_files(path)
    prompts: list[Prompt] = []
    problems: list[Problem] = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                prompts.append(parse(json.loads(line)))
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
