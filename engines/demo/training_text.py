"""Reads the draft's training text: shards of the target's answers, in batches, some prompts held out."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

HELD_OUT = 0.06


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt with its answer; `top_ids` and `top_probabilities` [answer tokens, 12] are the target's view."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    top_ids: Tensor
    top_probabilities: Tensor
    sampled: bool
    group: str


def read_shard(path: Path) -> tuple[list[Answer], float]:
    """The answers of one shard of generate_text.py (npz; pt is its older form), and the seconds they took."""
    if path.suffix == ".pt":
        made = torch.load(path, weights_only=True)
        rows = zip(made["prompts"], made["answers"], made["top_ids"], made["top_log_probabilities"], strict=True)
        return [answer(prompt, tokens, ids, logs, made["sampled"]) for prompt, tokens, ids, logs in rows], made[
            "seconds"
        ]
    with np.load(path) as file:
        kept = {name: file[name] for name in file.files}
    prompt_ends, ends = kept["prompt_lengths"].cumsum(), kept["answer_lengths"].cumsum()
    prompts = np.split(kept["prompt_tokens"].astype(np.int64), prompt_ends[:-1])
    tokens = np.split(kept["answer_tokens"].astype(np.int64), ends[:-1])
    ids = np.split(kept["top_ids"].astype(np.int64), ends[:-1])
    logs = np.split(kept["top_logprobs"], ends[:-1])
    parts = zip(prompts, tokens, ids, logs, kept["temperatures"] > 0, strict=True)
    read = [
        answer(prompt.tolist(), text.tolist(), torch.from_numpy(top), torch.from_numpy(values), bool(warm))
        for prompt, text, top, values, warm in parts
    ]
    return read, float(kept["seconds"])


def answer(prompt: list[int], tokens: list[int], top_ids: Tensor, top_logs: Tensor, sampled: bool) -> Answer:
    """One answer, its tops renormalised."""
    group = hashlib.sha256(json.dumps(prompt).encode()).hexdigest()
    return Answer(tuple(prompt), tuple(tokens), top_ids.long(), torch.softmax(top_logs.float(), -1), sampled, group)


class Text:
    """The training text: a folder of shards that may still grow while a draft is trained on it."""

    def __init__(self, folder: Path, joined: Mapping[str, int] | None) -> None:
        """`joined` (shard name -> round) repeats an earlier run; None takes what is there when a round begins."""
        self.folder = folder
        self.replayed = joined
        self.joined: dict[str, int] = {}
        self.seconds = 0.0
        self.learn: list[Answer] = []
        self.held_out: list[Answer] = []

    def join(self, number: int) -> None:
        """Read the shards that take part from round `number` on; the choice of held-out prompts is by their hash."""
        if self.replayed is None:
            names = sorted(path.name for path in self.folder.iterdir() if path.suffix in (".pt", ".npz"))
        else:
            names = [name for name, at in self.replayed.items() if at == number]
        for name in names:
            if name in self.joined:
                continue
            answers, seconds = read_shard(self.folder / name)
            self.joined[name] = number
            self.seconds += seconds
            for one in answers:
                (self.held_out if int(one.group[:4], 16) < HELD_OUT * 65536 else self.learn).append(one)


def batches(text: Sequence[Answer], size: int, count: int, draw: random.Random) -> list[list[Answer]]:
    """`count` batches of like length in random order: every answer once before any comes again."""
    order: list[Answer] = []
    while len(order) < size * count:
        order += draw.sample(text, len(text))
    pools = [order[start : start + size * 8] for start in range(0, size * count, size * 8)]
    cut: list[list[Answer]] = []
    for pool in pools:
        pool.sort(key=lambda one: len(one.prompt) + len(one.answer))
        cut += [pool[first : first + size] for first in range(0, len(pool), size)]
    draw.shuffle(cut)
    return cut[:count]


def candidates(answers: list[Answer]) -> Tensor:
    """Sorted ids that occur in the text or among the target's tops: training computes logits for these only."""
    seen: set[int] = {token for one in answers for token in one.prompt + one.answer}
    every = torch.cat([torch.tensor(sorted(seen)), *(one.top_ids.flatten() for one in answers)])
    found: Tensor = torch.unique(every)
    return found
