"""Trains Medusa heads for the demo target: residual blocks that share the target's own head."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from engines.demo.features import Seen, training_answers
from engines.demo.rounds import Lessons, Record, Schedule, train_rounds, versions, write_trained
from engines.demo.teaching import candidate_ids, divergence, draw_columns
from engines.demo.train_draft import target_embedding
from torch import Tensor, nn
from torch.nn import functional

HERE = Path(__file__).parent
KEPT = HERE / "medusa"
DRAWN = 512
TOPS = 6
HARD = 1.0
RANKS = 16
CHECKED = 5


class Medusa(nn.Module):
    """Heads x + silu(W x + b) on the target's feature; W and b begin at zero, where a head repeats the feature."""

    def __init__(self, heads: int, hidden: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(heads))
        for value in self.parameters():
            nn.init.zeros_(value)

    def forward(self, head: int, features: Tensor) -> Tensor:
        """[positions, hidden] -> [positions, hidden], to be multiplied by the target's head."""
        return features + functional.silu(self.blocks[head](features))

    def stored(self) -> dict[str, Tensor]:
        """Names of the published layout, float16."""
        return {
            f"{head}.0.linear.{name}": value.detach().to(torch.float16).contiguous()
            for head, block in enumerate(self.blocks)
            for name, value in block.named_parameters()
        }


def lesson_of(one: Seen, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """(features, top ids, top probabilities): the feature of position i with the target's view of token i + 2 + head.

    Token i + 1 is the target's own next token, so position i is the last of the prompt or one of the answer.
    """
    first, count = len(one.text.prompt) - 1, len(one.text.answer)
    taught = max(count - 1 - head, 0)
    features = one.features[first : first + taught].float()
    return features, one.text.top_ids[count - taught :, :TOPS], one.text.top_probabilities[count - taught :, :TOPS]


def batch_loss(
    model: Medusa, batch: list[Seen], head_rows: Tensor, candidates: Tensor, weights: Sequence[float]
) -> tuple[Tensor, int]:
    """Mean over positions, summed over heads with `weights`; and the number of answer tokens."""
    columns = draw_columns(
        torch.cat([one.text.top_ids[:, :TOPS].flatten() for one in batch]), candidates, head_rows, DRAWN
    )
    total = torch.zeros(())
    for head, weight in enumerate(weights):
        features, ids, top = (torch.cat(parts) for parts in zip(*(lesson_of(one, head) for one in batch), strict=True))
        total = total + weight * divergence(columns, model(head, features), ids, top, HARD).mean()
    return total, sum(len(one.text.answer) for one in batch)


@torch.inference_mode()
def ranks(model: Medusa, one: Seen, head_rows: Tensor) -> Tensor:
    """[positions, heads]: the place of the true token i + 2 + head among each head's guesses; RANKS is "not found".

    Positions are those from which every head looks at a token of the answer.
    """
    answer, heads = torch.tensor(one.text.answer), len(model.blocks)
    first, positions = len(one.text.prompt) - 1, len(one.text.answer) - 1 - len(model.blocks)
    if positions < 1:
        return torch.empty(0, heads, dtype=torch.long)
    features = one.features[first : first + positions].float()
    found = torch.full((positions, heads), RANKS)
    for head in range(heads):
        guesses = (model(head, features) @ head_rows.T).topk(RANKS).indices
        row, place = (guesses == answer[1 + head : 1 + head + positions, None]).nonzero(as_tuple=True)
        found[row, head] = place
    return found


def all_ranks(model: Medusa, texts: list[Seen], head_rows: Tensor) -> Tensor:
    """Ranks over all greedy answers of `texts`, one after the other."""
    return torch.cat([ranks(model, one, head_rows) for one in texts if not one.text.sampled])


def score(found: Tensor) -> Record:
    """Shares of positions where a head's first guess, and one of its first four, is the true token."""
    record: Record = {}
    for head in range(found.shape[1]):
        record[f"head_{head}_first"] = round(float((found[:, head] == 0).float().mean()), 4)
        record[f"head_{head}_in_four"] = round(float((found[:, head] < 4).float().mean()), 4)
    chain = (found == 0).long().cumprod(dim=1).sum(dim=1).float().mean()
    return record | {"chain": round(float(chain), 4)}


def facts(model: Medusa, schedule: Schedule, lessons: Lessons, records: list[Record]) -> dict[str, object]:
    """The receipt without digests. FLOPs: 6 for each weight of a block, 4 for each column of the frozen head."""
    trained = sum(value.numel() for value in model.parameters())
    hidden, heads = model.blocks[0].in_features, len(model.blocks)
    answers = sum(record["answer_tokens"] for record in records)
    columns = DRAWN + 1.5 * schedule.batch * 110
    return {
        "what": f"{heads} Medusa heads of SmolLM2-135M-Instruct, trained on the target's own answers",
        "settings": asdict(schedule) | {"heads": heads, "drawn_columns": DRAWN, "tops": TOPS, "hard_weight": HARD},
        "trained_parameters": trained,
        **lessons.facts(),
        "training_minutes": round(sum(record["seconds"] for record in records) / 60, 2),
        "estimated_flops": round(answers * (6 * trained + 4 * heads * columns * hidden)),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "rounds": records,
    }


def main() -> None:
    """Train; weights and receipt are written after each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, default=HERE.parent / "out/demo-training")
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=50, help="steps of a round")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    schedule = Schedule(asked.minutes, asked.steps, asked.batch, asked.learning_rate, asked.weight_decay, asked.seed)
    head_rows = target_embedding(asked.target)
    lessons, begun = Lessons(asked.text), time.monotonic()
    lessons.join(0)
    candidates = candidate_ids(training_answers(asked.text))
    model = Medusa(asked.heads, head_rows.shape[1])
    weights = [0.9**head for head in range(asked.heads)]

    def loss_of(batch: list[Seen]) -> tuple[Tensor, int]:
        return batch_loss(model, batch, head_rows, candidates, weights)

    def check() -> Record:
        return score(all_ranks(model, lessons.held_out[::CHECKED], head_rows))

    for records in train_rounds(model, lessons, schedule, loss_of, check, asked.text / f"{asked.out.name}.state"):
        print(json.dumps(records[-1]), f"{time.monotonic() - begun:.0f} s", flush=True)
        write_trained(asked.out, model.stored(), facts(model, schedule, lessons, records))
    held_out = score(all_ranks(model, lessons.held_out, head_rows))
    print(json.dumps(held_out))
    write_trained(asked.out, model.stored(), facts(model, schedule, lessons, records) | {"held_out": held_out})


if __name__ == "__main__":
    main()
