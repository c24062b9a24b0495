"""Grows the tree of candidates that yields most tokens a second here: measured places against measured steps."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from engines.demo import train_eagle, train_medusa
from engines.demo.eagle_network import EagleHead
from engines.demo.rounds import RECEIPT, WEIGHTS, Lessons
from engines.demo.train_draft import target_embedding
from safetensors.torch import load_file
from torch import Tensor

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.configuration import decoder_shape, section
from draftyard.engine.decoder import Decoder
from draftyard.engine.engine_directory import open_ranks, read_config
from draftyard.engine.runs import Run
from draftyard.engine.weights import read_weights

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MOST_NODES = 16
CACHED = 160
WIDEST = 8


def engine_directory(recipe: str, kind: str, store: Path = ROOT / "engines/out") -> Path:
    """The reference engine that the last build of `recipe` made for speculator `kind` (none: plain)."""
    blueprint = json.loads((store / f"by-recipe/{recipe}.json").read_text(encoding="utf-8"))
    for step in blueprint["steps"]:
        if step["kind"] == "engine" and step["parameters"]["lane"] == "reference":
            speculator = step["parameters"]["config"]["draftyard"]["speculator"]
            if speculator["kind"] == kind and (store / "engine" / step["key"]).is_dir():
                return store / "engine" / step["key"]
    raise SystemExit(f"no {kind} engine of {recipe}: run draftyard build engines/recipes/{recipe}.yaml")


def plain_decoder(directory: Path) -> Decoder:
    """The target of an engine directory, with room for one sequence."""
    shape = decoder_shape(section(read_config(directory), "pretrained_config"))
    device = torch.device("cpu")
    weights = read_weights(open_ranks(directory, shape, open_tensor_file), shape, device)
    return Decoder(shape, weights, 1, 2 * CACHED, device)


@torch.inference_mode()
def pass_times(decoder: Decoder, repeats: int) -> list[float]:
    """Milliseconds of a verification pass over n nodes and the token before them, by n; best of `repeats` in turn.

    Processor time of the one thread that computes: other work on the machine disturbs it less.
    """
    decoder.forward([Run(0, 0, tuple(range(100, 100 + CACHED)), CACHED)])
    best = [float("inf")] * (MOST_NODES + 1)
    for _ in range(repeats):
        for nodes in range(len(best)):
            parents = tuple((node + 1) // 2 - 1 for node in range(nodes + 1)) if nodes else None
            run = Run(0, CACHED, tuple(range(200, 201 + nodes)), 0, parents)
            begun = time.thread_time()
            decoder.forward([run]).argmax(dim=-1).tolist()
            best[nodes] = min(best[nodes], (time.thread_time() - begun) * 1000)
    # A pass over more nodes bounds that over fewer: what is above it was disturbed by other work.
    return [min(best[nodes:]) for nodes in range(len(best))]


@torch.inference_mode()
def heads_time(decoder: Decoder, heads: int, repeats: int) -> float:
    """Milliseconds of what Medusa heads cost a step: their states in one product with the target's head; the best."""
    states, best = torch.randn(heads, decoder.shape.hidden_size), float("inf")
    for _ in range(repeats):
        begun = time.thread_time()
        decoder.project(states).topk(8)
        best = min(best, (time.thread_time() - begun) * 1000)
    return best


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds: of a pass by its nodes, of drafting at all, and of each level of the tree behind the first."""

    passes: Sequence[float]
    draft: float
    level: float

    def step(self, nodes: int, levels: int) -> float:
        """A whole step with this tree."""
        return self.passes[nodes] + (self.draft + self.level * (levels - 1) if nodes else 0.0)


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree with its last path: share of positions that take it, and what all paths so far yield."""

    path: tuple[int, ...]
    share: float
    tokens_per_step: float
    step_ms: float

    @property
    def tokens_per_s(self) -> float:
        """What the tree is chosen by."""
        return 1000 * self.tokens_per_step / self.step_ms


def grow(found: Tensor, nodes: int, costs: Costs) -> list[Grown]:
    """Add, `nodes` times, the path that leaves most tokens a second.

    `found` [positions, levels]: the place that the true token has among the guesses of each level. A tree yields one
    token and, for each of its paths, the share of positions that take the path.
    """
    taken = Counter[tuple[int, ...]]()
    for row in found.tolist():
        taken.update(tuple(row[:depth]) for depth in range(1, len(row) + 1))
    grown: list[Grown] = []
    inside: set[tuple[int, ...]] = {()}
    for count in range(1, nodes + 1):
        before = grown[-1].tokens_per_step if grown else 1.0
        options = [
            Grown(path, times / len(found), before + times / len(found), costs.step(count, levels))
            for path, times in taken.items()
            if path not in inside and path[:-1] in inside and path[-1] < WIDEST
            for levels in [max(len(path), *map(len, inside))]
        ]
        if not options:
            break
        grown.append(max(options, key=lambda one: (one.tokens_per_s, [-rank for rank in one.path])))
        inside.add(grown[-1].path)
    return grown


def medusa_ranks(trained: Path, lessons: Lessons, embedding: Tensor) -> tuple[Tensor, int]:
    """Places [positions, heads] over the held-out text, and the number of heads."""
    kept = load_file(trained / WEIGHTS)
    model = train_medusa.Medusa(len(kept) // 2, embedding.shape[1]).eval()
    model.load_state_dict({f"blocks.{name.replace('.0.linear', '')}": value.float() for name, value in kept.items()})
    return train_medusa.all_ranks(model, lessons.held_out, embedding), len(model.blocks)


def eagle_ranks(trained: Path, lessons: Lessons, embedding: Tensor) -> Tensor:
    """Places [positions, drafting steps] over the held-out text."""
    model = EagleHead(embedding.shape[1], 9, 3, 1536, 0.0).eval()
    vocabulary, _ = train_eagle.go_on(model, trained, embedding)
    return train_eagle.paths(train_eagle.all_ranks(model, lessons.held_out, embedding, vocabulary))


def main() -> None:
    """Print the tree as it grows; --receipt notes the best beside the heads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("medusa", "eagle"))
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, default=HERE.parent / "out/demo-training")
    parser.add_argument("--trained", type=Path)
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--level-ms", type=float, default=2.0, help="what a level costs an EAGLE head")
    parser.add_argument("--receipt", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    trained = asked.trained or HERE / asked.kind
    lessons, embedding = Lessons(asked.text), target_embedding(asked.target)
    lessons.join(0)
    decoder = plain_decoder(engine_directory(asked.recipe, "none"))
    passes = pass_times(decoder, asked.repeats)
    if asked.kind == "medusa":
        found, heads = medusa_ranks(trained, lessons, embedding)
        costs = Costs(passes, heads_time(decoder, heads, asked.repeats), 0.0)
    else:
        found = eagle_ranks(trained, lessons, embedding)
        costs = Costs(passes, asked.level_ms, asked.level_ms)
    grown = grow(found, MOST_NODES, costs)
    print(f"plain {passes[0]:.1f} ms, {1000 / passes[0]:.1f} tokens/s; drafting {costs.draft:.1f} ms")
    for one in grown:
        print(
            f"{one.path!s:16} {one.share:.3f} {one.tokens_per_step:.3f} {one.step_ms:5.1f} ms {one.tokens_per_s:.1f}/s"
        )
    best = max(range(len(grown)), key=lambda index: grown[index].tokens_per_s)
    print(json.dumps([list(one.path) for one in grown[: best + 1]]))
    if asked.receipt:
        note(trained / RECEIPT, grown[: best + 1], costs, len(found))


def note(receipt: Path, grown: Sequence[Grown], costs: Costs, positions: int) -> None:
    """Put the tree and what it was chosen by into the training receipt, under `tree`."""
    document = json.loads(receipt.read_text(encoding="utf-8"))
    document["tree"] = {
        "what": "grown path by path, each the one that leaves most tokens a second: shares of held-out positions that "
        "take a path against milliseconds of a step measured here (one thread, float16 weights)",
        "choices": [list(one.path) for one in grown],
        "shares": [round(one.share, 4) for one in grown],
        "positions": positions,
        "pass_ms": [round(value, 2) for value in costs.passes],
        "draft_ms": round(costs.draft, 2),
        "level_ms": round(costs.level, 2),
    }
    receipt.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
