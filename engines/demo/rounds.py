"""Trains a head on the target's features in rounds that can be stopped, gone on with and used at any time."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import torch
import transformers
from engines.demo.features import Seen, kept_features, read_seen, shards
from engines.demo.training_text import HELD_OUT, read_shard
from safetensors.torch import save_file
from torch import Tensor, nn

Record = dict[str, float]
WEIGHTS = "weights.safetensors"
RECEIPT = "receipt.json"


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast: rounds of `steps` steps of `batch` texts until the minutes are used."""

    minutes: float
    steps: int
    batch: int
    learning_rate: float
    weight_decay: float
    seed: int

    def rate(self, used: float) -> float:
        """Linear warm-up over 3 % of the minutes, then a cosine down to 1 % of the peak; `used` is their share."""
        warm = 0.03
        if used < warm:
            return self.learning_rate * max(used / warm, 0.05)
        turned = min((used - warm) / (1 - warm), 1.0)
        return self.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * turned)))


class Lessons:
    """The texts with features, from a folder that may still grow: those to learn from and those held out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.learn: list[Seen] = []
        self.held_out: list[Seen] = []
        self.joined: dict[str, int] = {}
        self.seconds_written = 0.0

    def join(self, number: int) -> None:
        """Read the shards whose features came since; they take part from round `number` on."""
        for shard in shards(self.folder):
            if shard.name in self.joined or not kept_features(shard).exists():
                continue
            self.joined[shard.name] = number
            self.seconds_written += read_shard(shard)[1]
            for one in read_seen(shard):
                (self.held_out if one.held_out else self.learn).append(one)

    def facts(self) -> dict[str, object]:
        """What a receipt says of them."""
        return {
            "training_sequences": len(self.learn),
            "greedy_sequences": sum(not one.text.sampled for one in self.learn),
            "training_answer_tokens": sum(len(one.text.answer) for one in self.learn),
            "training_tokens": sum(len(one.tokens) for one in self.learn),
            "held_out_share_of_prompts": HELD_OUT,
            "held_out_sequences": len(self.held_out),
            "held_out_tokens": sum(len(one.text.answer) for one in self.held_out),
            "generation": {"shards": len(self.joined), "seconds": round(self.seconds_written, 1)},
            "shards_joined_in_round": dict(self.joined),
        }


def order(texts: list[Seen], size: int, draw: random.Random) -> Iterator[list[Seen]]:
    """Batches without end: texts with answers of like length together, each once before any comes again."""
    while True:
        shuffled = draw.sample(texts, len(texts))
        pools = [shuffled[start : start + size * 8] for start in range(0, len(shuffled), size * 8)]
        cut = []
        for pool in pools:
            pool.sort(key=lambda one: len(one.text.answer))
            cut += [pool[first : first + size] for first in range(0, len(pool), size)]
        draw.shuffle(cut)
        yield from cut


def optimiser_of(model: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices alone."""
    matrices = [value for value in model.parameters() if value.ndim > 1]
    vectors = [value for value in model.parameters() if value.ndim == 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def train_rounds(
    model: nn.Module,
    lessons: Lessons,
    schedule: Schedule,
    loss_of: Callable[[list[Seen]], tuple[Tensor, int]],
    check: Callable[[], Record],
    state: Path,
) -> Iterator[list[Record]]:
    """Yield all records so far after each round; `state` keeps what is needed to go on after a stop."""
    optimiser = optimiser_of(model, schedule.weight_decay)
    records: list[Record] = []
    if state.exists():
        kept = torch.load(state, weights_only=True)
        if kept["schedule"] != asdict(schedule):
            raise SystemExit(f"{state} belongs to other settings: remove it to begin anew")
        model.load_state_dict(kept["model"])
        optimiser.load_state_dict(kept["optimiser"])
        records = kept["records"]
    used = sum(record["seconds"] for record in records)
    while used < schedule.minutes * 60:
        number = len(records)
        lessons.join(number)
        torch.manual_seed(schedule.seed * 1009 + number)
        feed = order(lessons.learn, schedule.batch, random.Random(schedule.seed * 1009 + number))
        model.train()
        start, total, tokens = time.monotonic(), 0.0, 0
        for _ in range(schedule.steps):
            rate = schedule.rate((used + time.monotonic() - start) / (schedule.minutes * 60))
            for group in optimiser.param_groups:
                group["lr"] = rate
            loss, count = loss_of(next(feed))
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            total, tokens = total + loss.item() * count, tokens + count
        seconds = round(time.monotonic() - start, 1)
        used += seconds
        model.eval()
        record: Record = {"round": number, "answer_tokens": tokens, "training_loss": round(total / tokens, 4)}
        records = [*records, record | check() | {"seconds": seconds}]
        parts = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
        beside = state.with_suffix(".partial")
        torch.save(parts | {"schedule": asdict(schedule), "records": records}, beside)
        beside.rename(state)
        yield records


def write_trained(out: Path, tensors: Mapping[str, Tensor], receipt: Mapping[str, object]) -> None:
    """Write weights and receipt into `out`; the receipt carries the digest of the weights."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), out / WEIGHTS)
    digest = hashlib.sha256((out / WEIGHTS).read_bytes()).hexdigest()
    whole = dict(receipt) | {"weights_sha256": digest, "weights_bytes": (out / WEIGHTS).stat().st_size}
    (out / RECEIPT).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """What the weights were trained with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "safetensors": safetensors.__version__,
    }
