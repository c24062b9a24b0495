"""Keeps the target's hidden states over the training text: what Medusa and EAGLE heads see and are taught."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from engines.demo.training_text import HELD_OUT, Answer, read_shard
from torch import Tensor
from transformers import LlamaModel

HERE = Path(__file__).parent
TOKENS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class Seen:
    """An answer with the target's feature [tokens, hidden] (output of the final norm) at each token of its text."""

    text: Answer
    features: Tensor

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.text.prompt + self.text.answer

    @property
    def held_out(self) -> bool:
        """True when it is kept for measuring."""
        return is_held_out(self.text)


def is_held_out(text: Answer) -> bool:
    """The choice that `training_text.Text` makes, by the prompt's hash."""
    return int(text.group[:4], 16) < HELD_OUT * 65536


def training_answers(folder: Path) -> list[Answer]:
    """All answers of a folder but those held out, whether their features are there or not."""
    return [one for shard in shards(folder) for one in read_shard(shard)[0] if not is_held_out(one)]


def kept_features(shard: Path) -> Path:
    """Where the features of a shard are kept: float16 [tokens of all its texts, hidden]."""
    return shard.parent / "features" / f"{shard.name}.npy"


def shards(folder: Path) -> list[Path]:
    """The shards of the training text, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".pt", ".npz"))


def read_seen(shard: Path) -> list[Seen]:
    """The answers of a shard with their features."""
    features = torch.from_numpy(np.load(kept_features(shard)))
    answers, _ = read_shard(shard)
    lengths = [len(one.prompt) + len(one.answer) for one in answers]
    if sum(lengths) != len(features):
        raise SystemExit(f"{shard.name} has other tokens than its features: run engines.demo.features again")
    return [Seen(one, part) for one, part in zip(answers, features.split(lengths), strict=True)]


@torch.inference_mode()
def extract(model: LlamaModel, answers: list[Answer]) -> Tensor:
    """Features float16 [tokens, hidden] of all texts, one after the other; texts of like length run together."""
    texts = [one.prompt + one.answer for one in answers]
    found: list[Tensor] = [torch.empty(0)] * len(texts)
    waiting = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    while waiting:
        count = max(1, TOKENS_AT_ONCE // len(texts[waiting[-1]]))
        chosen, waiting = waiting[-count:], waiting[:-count]
        width = len(texts[chosen[-1]])
        ids = torch.zeros(len(chosen), width, dtype=torch.long)
        for row, index in enumerate(chosen):
            ids[row, : len(texts[index])] = torch.tensor(texts[index])
        # Padding stands on the right, where no token of the text sees it: no mask is needed.
        states = model(input_ids=ids, use_cache=False).last_hidden_state
        for row, index in enumerate(chosen):
            found[index] = states[row, : len(texts[index])].to(torch.float16)
    return torch.cat(found)


def run(asked: argparse.Namespace) -> None:
    """Extract the features of every shard that has none yet."""
    torch.set_num_threads(asked.threads)
    model: LlamaModel = LlamaModel.from_pretrained(asked.target, dtype=torch.float32)
    (asked.text / "features").mkdir(exist_ok=True)
    for shard in shards(asked.text):
        path = kept_features(shard)
        if path.exists():
            continue
        start = time.monotonic()
        answers, _ = read_shard(shard)
        features = extract(model, answers)
        beside = path.with_suffix(".partial")
        with beside.open("wb") as file:
            np.save(file, features.numpy())
        beside.rename(path)
        print(f"{shard.name}: {len(features)} tokens in {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    """Read the command line and extract."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, default=HERE.parent / "out/demo-training")
    parser.add_argument("--threads", type=int, default=1)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
