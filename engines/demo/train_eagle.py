"""Trains an EAGLE head for the demo target on the target's features and its own answers."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from engines.demo.eagle_network import EagleHead, Pairs, pairs_of
from engines.demo.features import Seen, training_answers
from engines.demo.rounds import (
    RECEIPT,
    WEIGHTS,
    Lessons,
    Record,
    Schedule,
    train_rounds,
    versions,
    write_trained,
)
from engines.demo.teaching import divergence, draw_columns, frequent_ids
from engines.demo.train_draft import target_embedding
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

HERE = Path(__file__).parent
KEPT = HERE / "eagle"
DRAWN = 768
TOPS = 6
HARD = 0.3
DEPTH = 4
RANKS = 8
CHECKED = 5


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The reduced vocabulary: its ids [kept], their rows of the target's head, and each id's place in it (-1: none)."""

    ids: Tensor
    rows: Tensor
    place_of: Tensor


@dataclass(frozen=True, slots=True)
class Aims:
    """How far the head drafts while it learns, the weight of feature regression, and the noise on features."""

    draft_steps: int
    feature_weight: float
    noise: float


def reduced(ids: Tensor, head: Tensor) -> Vocabulary:
    """The vocabulary of `ids` [kept], ascending."""
    place_of = torch.full((len(head),), -1)
    place_of[ids] = torch.arange(len(ids))
    return Vocabulary(ids, head[ids], place_of)


def teachable(texts: list[Seen]) -> list[Seen]:
    """Texts with an answer of at least `DEPTH` + 1 tokens."""
    return [one for one in texts if len(one.text.answer) > DEPTH]


def taught_tops(batch: list[Seen], vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """(places, probabilities) [taught pairs of all rows, TOPS]: the target's view, renormalised to the vocabulary."""
    places = vocabulary.place_of[torch.cat([one.text.top_ids[1:, :TOPS] for one in batch])]
    top = torch.cat([one.text.top_probabilities[1:, :TOPS] for one in batch]) * (places >= 0)
    return places.clamp_min(0), top / top.sum(dim=-1, keepdim=True).clamp_min(1e-3)


def noisy(pairs: Pairs, noise: float, spread: Tensor) -> Pairs:
    """Uniform noise of `noise` times each dimension's spread on the features, against drift in later steps."""
    shaken = pairs.features + (torch.rand_like(pairs.features) - 0.5) * (2 * noise) * spread
    return Pairs(pairs.embedded, shaken, pairs.first, pairs.counts)


def batch_loss(
    model: EagleHead, batch: list[Seen], embedding: Tensor, vocabulary: Vocabulary, aims: Aims, spread: Tensor
) -> tuple[Tensor, int]:
    """Mean over taught pairs and steps: KL to the target's tops, surprise at its first, and smooth L1 of features."""
    batch = teachable(batch)
    pairs = pairs_of(batch, embedding)
    places, top = taught_tops(batch, vocabulary)
    columns = draw_columns(places.flatten(), torch.arange(len(vocabulary.ids)), vocabulary.rows, DRAWN)
    true = torch.cat([one.features[len(one.text.prompt) : -1].float() for one in batch])
    inside = pairs.valid(0)
    total = torch.zeros(())
    for step, guessed in enumerate(model(noisy(pairs, aims.noise, spread), aims.draft_steps)):
        counts = pairs.valid(step)[inside]
        flat = guessed[inside][counts]
        loss = divergence(columns, flat, places[counts], top[counts], HARD).mean()
        regression = functional.smooth_l1_loss(flat / spread, true[counts] / spread)
        total = total + (loss + aims.feature_weight * regression) / aims.draft_steps
    return total, len(true)


@torch.inference_mode()
def ranks(model: EagleHead, batch: list[Seen], embedding: Tensor, vocabulary: Vocabulary) -> list[Tensor]:
    """Per text [drafting steps, answer tokens - 1]: place of each true token among the guesses of step k for it.

    Step k at a token supposes that the k drafted tokens before it were the true ones, whatever their own places.
    RANKS means that it is not among the first RANKS guesses.
    """
    found = []
    for guessed in model(pairs_of(batch, embedding), DEPTH):
        guesses = vocabulary.ids[(guessed @ vocabulary.rows.T).topk(RANKS).indices]
        found.append(guesses)
    placed = []
    for row, one in enumerate(batch):
        answer = torch.tensor(one.text.answer[1:])
        equal = torch.stack([step[row, : len(answer)] for step in found]) == answer[None, :, None]
        placed.append(torch.where(equal.any(dim=-1), equal.long().argmax(dim=-1), RANKS))
    return placed


def all_ranks(model: EagleHead, texts: list[Seen], embedding: Tensor, vocabulary: Vocabulary) -> list[Tensor]:
    """`ranks` of all greedy answers of `texts`."""
    greedy = [one for one in teachable(texts) if not one.text.sampled]
    batches = [greedy[start : start + 8] for start in range(0, len(greedy), 8)]
    return [row for batch in batches for row in ranks(model, batch, embedding, vocabulary)]


def paths(placed: list[Tensor]) -> Tensor:
    """[positions, drafting steps]: the places that a drafted path from each position would have to take."""
    rows = [
        torch.stack([one[step, step : one.shape[1] - DEPTH + 1 + step] for step in range(DEPTH)], dim=1)
        for one in placed
    ]
    return torch.cat(rows)


def chain_steps(right: Tensor) -> int:
    """Verification steps that chains of `DEPTH` need for a greedy answer, the prefill apart; exact."""
    place = steps = 0
    while place < right.shape[1]:
        run = 0
        while run < min(len(right), right.shape[1] - place) and right[run, place + run]:
            run += 1
        place += run + 1
        steps += 1
    return steps


def score(placed: list[Tensor]) -> Record:
    """Share of right guesses by step (true tokens before), and tokens per verification of a chain of `DEPTH`."""
    record: Record = {}
    for step in range(DEPTH):
        record[f"step_{step}"] = round(float(torch.cat([one[step, step:] == 0 for one in placed]).float().mean()), 4)
    verified = sum(chain_steps(one == 0) for one in placed)
    return record | {"acceptance_length": round(sum(one.shape[1] for one in placed) / verified, 4)}


@torch.no_grad()
def start(model: EagleHead, lessons: Lessons, embedding: Tensor, texts: int) -> Tensor:
    """Set fc to the least-squares map from a pair to the next feature; returns the spread of each of its dimensions."""
    pairs, nexts = [], []
    for one in lessons.learn[:: max(1, len(lessons.learn) // texts)]:
        features = one.features.float()
        pairs.append(torch.cat((embedding[torch.tensor(one.tokens[1:])], features[:-1]), dim=1))
        nexts.append(features[1:])
    inputs, wanted = torch.cat(pairs).double(), torch.cat(nexts).double()
    inputs = torch.cat((inputs, torch.ones(len(inputs), 1, dtype=torch.float64)), dim=1)
    ridge = 1e-3 * len(inputs) * torch.diag(inputs.square().mean(dim=0))
    solved = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ wanted)
    model.fc.weight.copy_(solved[:-1].T)
    model.fc.bias.copy_(solved[-1])
    return wanted.std(dim=0).float()


def facts(
    model: EagleHead, aims: Aims, schedule: Schedule, lessons: Lessons, vocabulary: Vocabulary, records: list[Record]
) -> dict[str, object]:
    """The receipt without digests. FLOPs: 6 for each weight and position, 4 for each column of the frozen head."""
    trained = sum(value.numel() for value in model.parameters())
    prompt_side = sum(value.numel() for layer in (model.fc, model.k_proj, model.v_proj) for value in layer.parameters())
    answers = sum(record["answer_tokens"] for record in records)
    hidden = model.fc.out_features
    whole = lessons.facts()
    prompts = sum(len(one.text.prompt) for one in lessons.learn) / sum(len(one.text.answer) for one in lessons.learn)
    columns = DRAWN + 1.5 * schedule.batch * 110
    flops = answers * (aims.draft_steps * (6 * trained + 4 * columns * hidden) + 6 * prompts * prompt_side)
    return {
        "what": "an EAGLE head of SmolLM2-135M-Instruct, trained on the target's own answers and features",
        "settings": asdict(schedule) | asdict(aims) | {"drawn_columns": DRAWN, "tops": TOPS, "hard_weight": HARD},
        "trained_parameters": trained,
        "draft_vocabulary": len(vocabulary.ids),
        **whole,
        "training_minutes": round(sum(record["seconds"] for record in records) / 60, 2),
        "estimated_flops": round(flops),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "rounds": records,
    }


def stored(model: EagleHead, vocabulary: Vocabulary) -> dict[str, Tensor]:
    """What is kept: the layer, and `d2t`, from which the head's rows are taken when the directory is made."""
    return model.stored() | {"d2t": vocabulary.ids - torch.arange(len(vocabulary.ids))}


def go_on(model: EagleHead, folder: Path, embedding: Tensor) -> tuple[Vocabulary, dict[str, object]]:
    """Take weights and vocabulary of an earlier training; returns that, and its receipt under `went_on_from`."""
    kept = load_file(folder / WEIGHTS)
    d2t = kept.pop("d2t")
    with torch.no_grad():
        for name, value in zip(model.stored(), model.parameters(), strict=True):
            value.copy_(kept[name].float())
    earlier = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
    return reduced(d2t + torch.arange(len(d2t)), embedding), {"went_on_from": earlier}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, default=HERE.parent / "out/demo-training")
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--go-on-from", type=Path, help="an EAGLE head's folder, whose weights are the start")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=50, help="steps of a round")
    parser.add_argument("--draft-steps", type=int, default=1, help="drafting steps that are unrolled in training")
    parser.add_argument("--feature-weight", type=float, default=0.5)
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Train; weights and receipt are written after each round."""
    asked = parse()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    schedule = Schedule(asked.minutes, asked.steps, asked.batch, asked.learning_rate, asked.weight_decay, asked.seed)
    aims = Aims(asked.draft_steps, asked.feature_weight, asked.noise)
    embedding = target_embedding(asked.target)
    lessons, begun = Lessons(asked.text), time.monotonic()
    lessons.join(0)
    vocabulary = reduced(frequent_ids(training_answers(asked.text), asked.vocabulary, len(embedding)), embedding)
    model = EagleHead(embedding.shape[1], 9, 3, 1536, asked.dropout)
    spread = start(model, lessons, embedding, 200)
    earlier: dict[str, object] = {}
    if asked.go_on_from:
        vocabulary, earlier = go_on(model, asked.go_on_from, embedding)

    def loss_of(batch: list[Seen]) -> tuple[Tensor, int]:
        return batch_loss(model, batch, embedding, vocabulary, aims, spread)

    def check() -> Record:
        return score(all_ranks(model, lessons.held_out[::CHECKED], embedding, vocabulary))

    model.eval()
    print(json.dumps(check()), f"{time.monotonic() - begun:.0f} s", flush=True)
    for records in train_rounds(model, lessons, schedule, loss_of, check, asked.text / f"{asked.out.name}.state"):
        print(json.dumps(records[-1]), f"{time.monotonic() - begun:.0f} s", flush=True)
        receipt = facts(model, aims, schedule, lessons, vocabulary, records) | earlier
        write_trained(asked.out, stored(model, vocabulary), receipt)
    held_out = score(all_ranks(model, lessons.held_out, embedding, vocabulary))
    print(json.dumps(held_out))
    write_trained(asked.out, stored(model, vocabulary), receipt | {"held_out": held_out})


if __name__ == "__main__":
    main()
