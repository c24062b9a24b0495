"""Grows the tree of Medusa candidates that yields most tokens a second here: measured ranks against measured steps."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from engines.demo.rounds import RECEIPT, WEIGHTS, Lessons
from engines.demo.train_draft import target_embedding
from engines.demo.train_medusa import Medusa, all_ranks
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
def step_times(decoder: Decoder, head_states: int, repeats: int) -> dict[int, float]:
    """Milliseconds of a verification pass over n nodes and the token before them, best of `repeats` taken in turn.

    The pass of n > 0 includes what the heads cost: their states in one product with the target's head.
    """
    block = torch.randn(head_states, decoder.shape.hidden_size)
    decoder.forward([Run(0, 0, tuple(range(100, 100 + CACHED)), CACHED)])
    best = dict.fromkeys(range(MOST_NODES + 1), float("inf"))
    for _ in range(repeats):
        for nodes in best:
            parents = tuple((node + 1) // 2 - 1 for node in range(nodes + 1)) if nodes else None
            run = Run(0, CACHED, tuple(range(200, 201 + nodes)), 0, parents)
            begun = time.perf_counter()
            logits = decoder.forward([run])
            if nodes:
                decoder.project(block).topk(8)
            logits.argmax(dim=-1).tolist()
            best[nodes] = min(best[nodes], (time.perf_counter() - begun) * 1000)
    return best


def grow(found: Tensor, nodes: int) -> list[tuple[tuple[int, ...], float]]:
    """Paths in the order in which they gain most: (ranks from the first head on, share of positions that take it)."""
    paths = Counter[tuple[int, ...]]()
    for row in found.tolist():
        for depth in range(1, len(row) + 1):
            paths[tuple(row[:depth])] += 1
    chosen: list[tuple[tuple[int, ...], float]] = []
    inside: set[tuple[int, ...]] = {()}
    while len(chosen) < nodes:
        open_paths = [path for path in paths if path not in inside and path[:-1] in inside and path[-1] < 8]
        best = max(open_paths, key=lambda path: (paths[path], [-rank for rank in path]))
        inside.add(best)
        chosen.append((best, paths[best] / len(found)))
    return chosen


def rates(chosen: list[tuple[tuple[int, ...], float]], times: Mapping[int, float]) -> list[tuple[int, float, float]]:
    """(nodes, expected tokens a step, tokens a second) for every number of nodes, 0 being plain decoding."""
    expected = [1.0]
    for _, share in chosen:
        expected.append(expected[-1] + share)
    return [(nodes, tokens, 1000 * tokens / times[nodes]) for nodes, tokens in enumerate(expected)]


def main() -> None:
    """Print the tree and the table; --receipt notes both beside the heads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, default=HERE.parent / "out/demo-training")
    parser.add_argument("--trained", type=Path, default=HERE / "medusa")
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--receipt", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kept = load_file(asked.trained / WEIGHTS)
    model = Medusa(len(kept) // 2, 576)
    model.load_state_dict({f"blocks.{name.replace('.0.linear', '')}": value.float() for name, value in kept.items()})
    lessons = Lessons(asked.text)
    lessons.join(0)
    found = all_ranks(model, lessons.held_out, target_embedding(asked.target))
    chosen = grow(found, MOST_NODES)
    decoder = plain_decoder(engine_directory(asked.recipe, "none"))
    times = step_times(decoder, len(model.blocks), asked.repeats)
    table = rates(chosen, times)
    for nodes, tokens, rate in table:
        print(f"{nodes:3d} nodes {times[nodes]:6.1f} ms  {tokens:.3f} tokens a step  {rate:6.1f} tokens/s")
    best = max(table, key=lambda row: row[2])[0]
    choices = [list(path) for path, _ in chosen[:best]]
    print(json.dumps(choices))
    if asked.receipt:
        document = json.loads((asked.trained / RECEIPT).read_text(encoding="utf-8"))
        document["tree"] = {
            "what": "paths by how often the held-out greedy text takes them; as many as give most tokens a second",
            "choices": choices,
            "step_ms": {str(nodes): round(value, 2) for nodes, value in times.items()},
            "expected_tokens_per_step": [round(tokens, 4) for _, tokens, _ in table],
            "positions": len(found),
        }
        (asked.trained / RECEIPT).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
