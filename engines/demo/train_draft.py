"""Trains the demo's draft model on the target's own answers, and writes its small weights and a receipt."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaModel

HEAD_DIM = 64
CHAIN = 4
KEPT = Path(__file__).parent / "draft"


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt with its answer; `top_ids` and `top_probabilities` [answer tokens, 12] are the target's view."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    top_ids: Tensor
    top_probabilities: Tensor
    sampled: bool
    group: str


@dataclass(frozen=True, slots=True)
class Score:
    """Held-out measurements: shares of answer tokens, and tokens per verification step with 4 drafted."""

    loss: float
    agreement: float
    second_given_first: float
    acceptance_length: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the weights, beside the text."""

    hidden_size: int
    layers: int
    intermediate_size: int
    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    dropout: float
    seed: int


class Draft(nn.Module):
    """A small Llama whose embedding and head are learned projections of the target's (frozen) embedding."""

    def __init__(self, settings: Settings, embedding: Tensor) -> None:
        super().__init__()
        width = settings.hidden_size
        self.embedding = embedding
        basis, scale = principal_directions(embedding, width)
        self.project_in = nn.Parameter(basis / scale)
        self.project_out = nn.Parameter(1.5 * basis / scale / math.sqrt(width))
        heads = width // HEAD_DIM
        self.body = LlamaModel(
            LlamaConfig(
                vocab_size=1,
                hidden_size=width,
                intermediate_size=settings.intermediate_size,
                num_hidden_layers=settings.layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                head_dim=HEAD_DIM,
                rms_norm_eps=1e-5,
                rope_theta=100000.0,
                max_position_embeddings=8192,
                pad_token_id=0,
                use_cache=False,
            )
        )
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Final hidden states [sequences, positions, width] of right-padded `ids`."""
        embedded = self.dropout(functional.embedding(ids, self.embedding) @ self.project_in)
        return self.dropout(self.body(inputs_embeds=embedded, attention_mask=mask).last_hidden_state)

    def stored(self) -> dict[str, Tensor]:
        """What is kept: projections in float32, layers and norms rounded to bfloat16."""
        kept = {
            name: value.detach().to(torch.bfloat16).contiguous()
            for name, value in self.body.state_dict().items()
            if not name.startswith("embed_tokens")
        }
        projections = {"project_in": self.project_in, "project_out": self.project_out}
        return kept | {name: value.detach().clone().contiguous() for name, value in projections.items()}


def principal_directions(embedding: Tensor, width: int) -> tuple[Tensor, float]:
    """The first `width` right singular vectors [hidden, width], and the rms of the rows projected on them."""
    values, vectors = torch.linalg.eigh((embedding.T @ embedding).double())
    basis = vectors[:, values.argsort(descending=True)[:width]].float()
    return basis, float((embedding @ basis).square().mean().sqrt())


def target_embedding(directory: Path) -> Tensor:
    """The target's embedding [vocabulary, hidden], rounded to bfloat16 as in the materialised target."""
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        return file.get_tensor("model.embed_tokens.weight").to(torch.bfloat16).float()


def read_answers(folder: Path) -> tuple[list[Answer], dict[str, float]]:
    """All answers of the shards in `folder`, and what they cost: shards, seconds."""
    answers: list[Answer] = []
    shards = sorted(folder.glob("shard-*.pt"))
    seconds = 0.0
    for shard in shards:
        made = torch.load(shard, weights_only=True)
        seconds += made["seconds"]
        rows = zip(made["prompts"], made["answers"], made["top_ids"], made["top_log_probabilities"], strict=True)
        for prompt, answer, top_ids, top_log_probabilities in rows:
            group = hashlib.sha256(json.dumps(prompt).encode()).hexdigest()
            top = torch.softmax(top_log_probabilities.float(), dim=-1)
            answers.append(Answer(tuple(prompt), tuple(answer), top_ids.long(), top, made["sampled"], group))
    return answers, {"shards": len(shards), "seconds": round(seconds, 1)}


def held_out(answers: list[Answer], share: float) -> tuple[list[Answer], list[Answer]]:
    """Split by prompt, so that no prompt is on both sides; the split depends on the prompts alone."""
    groups = sorted({answer.group for answer in answers})
    kept_out = set(groups[: max(1, round(len(groups) * share))])
    return [a for a in answers if a.group not in kept_out], [a for a in answers if a.group in kept_out]


def batches(answers: list[Answer], size: int, draw: random.Random) -> Iterator[list[Answer]]:
    """Batches of like length in random order: pools of eight batches are sorted by length and cut."""
    order = draw.sample(answers, len(answers))
    cut: list[list[Answer]] = []
    for start in range(0, len(order), size * 8):
        pool = sorted(order[start : start + size * 8], key=lambda answer: len(answer.prompt) + len(answer.answer))
        cut += [pool[first : first + size] for first in range(0, len(pool), size)]
    draw.shuffle(cut)
    yield from cut


def padded(batch: list[Answer]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, attention mask and the mask of positions that predict an answer token, each [sequences, positions]."""
    width = max(len(a.prompt) + len(a.answer) - 1 for a in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    predicts = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, a in enumerate(batch):
        sequence = (a.prompt + a.answer)[:-1]
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
        predicts[row, len(a.prompt) - 1 : len(sequence)] = True
    return ids, mask, predicts


def candidates(answers: list[Answer]) -> Tensor:
    """Sorted ids that occur in the text or among the target's tops: training computes logits for these only."""
    seen: set[int] = {token for a in answers for token in a.prompt + a.answer}
    return torch.unique(torch.cat([torch.tensor(sorted(seen)), *(a.top_ids.flatten() for a in answers)]))


def batch_loss(draft: Draft, batch: list[Answer], ids_kept: Tensor, slot_of: Tensor) -> tuple[Tensor, int]:
    """Mean over answer tokens of KL(target's renormalised top 12 || draft) + 0.3 cross-entropy of the chosen token."""
    ids, mask, predicts = padded(batch)
    hidden = draft(ids, mask)[predicts]
    logits = hidden @ (draft.embedding[ids_kept] @ draft.project_out).T
    log_probabilities = logits.log_softmax(dim=-1)
    top_slots = slot_of[torch.cat([a.top_ids for a in batch])]
    top = torch.cat([a.top_probabilities for a in batch])
    divergence = (top * (top.clamp_min(1e-8).log() - log_probabilities.gather(1, top_slots))).sum(dim=-1)
    chosen = slot_of[torch.cat([torch.tensor(a.answer) for a in batch])]
    surprise = -log_probabilities.gather(1, chosen[:, None])[:, 0]
    return (divergence + 0.3 * surprise).mean(), len(chosen)


@torch.inference_mode()
def measure(draft: Draft, answers: list[Answer]) -> Score:
    """Score with the full vocabulary; the acceptance length is exact for greedy answers, which alone count there."""
    draft.eval()
    head = (draft.embedding @ draft.project_out).T
    losses, hits, pairs, chains = [], [], [], [0, 0]
    for a in answers:
        ids, mask, predicts = padded([a])
        logits = draft(ids, mask)[predicts] @ head
        top = logits.log_softmax(dim=-1).gather(1, a.top_ids)
        losses.append(-(a.top_probabilities * top).sum(dim=-1))
        hit = logits.argmax(dim=-1) == a.top_ids[:, 0]
        hits.append(hit)
        pairs.append(hit[1:][hit[:-1]])
        if not a.sampled:
            chains[0] += len(hit)
            chains[1] += verification_steps(hit.tolist())
    return Score(
        loss=round(float(torch.cat(losses).mean()), 4),
        agreement=round(float(torch.cat(hits).float().mean()), 4),
        second_given_first=round(float(torch.cat(pairs).float().mean()), 4),
        acceptance_length=round(chains[0] / max(chains[1], 1), 4),
    )


def verification_steps(hits: list[bool]) -> int:
    """Steps a greedy chain of four drafted tokens needs for this text: each takes the agreeing run plus one."""
    steps = place = 0
    while place < len(hits):
        run = 0
        while run < CHAIN and place + run < len(hits) and hits[place + run]:
            run += 1
        place += run + 1
        steps += 1
    return steps


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 4 % of the steps, then a cosine down to 2 % of the peak."""
    warm = max(1, steps // 25)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def train(draft: Draft, learn: list[Answer], check: list[Answer], settings: Settings) -> Iterator[dict[str, float]]:
    """Train epoch by epoch; yields each epoch's record, the draft being left as it is at that point."""
    draw = random.Random(settings.seed)
    ids_kept = candidates(learn)
    slot_of = torch.zeros(len(draft.embedding), dtype=torch.long)
    slot_of[ids_kept] = torch.arange(len(ids_kept))
    matrices = [value for value in draft.parameters() if value.ndim > 1]
    vectors = [value for value in draft.parameters() if value.ndim == 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    steps = settings.epochs * math.ceil(len(learn) / settings.batch)
    step = 0
    for epoch in range(1, settings.epochs + 1):
        draft.train()
        start, total, tokens = time.monotonic(), 0.0, 0
        for batch in batches(learn, settings.batch, draw):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, settings.learning_rate)
            loss, count = batch_loss(draft, batch, ids_kept, slot_of)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            optimiser.step()
            total, tokens, step = total + loss.item() * count, tokens + count, step + 1
        score = asdict(measure(draft, check))
        seconds = round(time.monotonic() - start, 1)
        yield {"epoch": epoch, "training_loss": round(total / tokens, 4), **score, "seconds": seconds}


def write(draft: Draft, receipt: Mapping[str, object], out: Path) -> None:
    """Write weights.safetensors and receipt.json into `out`; the receipt carries the digest of the weights."""
    out.mkdir(parents=True, exist_ok=True)
    weights = out / "weights.safetensors"
    save_file(draft.stored(), weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    whole = dict(receipt) | {"weights_sha256": digest, "weights_bytes": weights.stat().st_size}
    (out / "receipt.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def facts(draft: Draft, settings: Settings, learn: list[Answer], check: list[Answer]) -> dict[str, object]:
    """The part of the receipt that is known before training."""
    body = sum(value.numel() for name, value in draft.body.named_parameters() if not name.startswith("embed_tokens"))
    projections = draft.project_in.numel() + draft.project_out.numel()
    answer_tokens = sum(len(a.answer) for a in learn)
    all_tokens = answer_tokens + sum(len(a.prompt) for a in learn)
    kept = len(candidates(learn))
    per_epoch = 6 * (all_tokens * (body + draft.project_in.numel()) + answer_tokens * kept * settings.hidden_size)
    per_epoch += 6 * math.ceil(len(learn) / settings.batch) * kept * draft.project_out.numel()
    return {
        "what": "a draft model of SmolLM2-135M-Instruct, trained on the target's own answers to the training prompts",
        "settings": asdict(settings),
        "trained_parameters": body + projections,
        "candidate_ids": kept,
        "candidate_note": "training computes logits for ids of the text and of the tops only; scores use all ids",
        "training_sequences": len(learn),
        "training_answer_tokens": answer_tokens,
        "training_tokens": all_tokens,
        "greedy_sequences": sum(not a.sampled for a in learn),
        "held_out_sequences": len(check),
        "held_out_answer_tokens": sum(len(a.answer) for a in check),
        "estimated_flops_per_epoch": per_epoch,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "safetensors": safetensors.__version__,
        },
        "threads": torch.get_num_threads(),
    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="the materialised target's directory")
    parser.add_argument("text", type=Path, help="folder of generate_text.py's shards")
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--intermediate-size", type=int, default=576)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Train, keep the epoch with the best held-out agreement, write weights and receipt after each better epoch."""
    options = parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    settings = Settings(**{name: getattr(options, name) for name in Settings.__dataclass_fields__})
    answers, cost = read_answers(options.text)
    learn, check = held_out(answers, 0.05)
    draft = Draft(settings, target_embedding(options.target))
    receipt = facts(draft, settings, learn, check) | {"generation": cost}
    print(json.dumps(receipt), flush=True)
    start, best, epochs = time.monotonic(), -1.0, list[dict[str, float]]()
    for record in train(draft, learn, check, settings):
        epochs.append(record)
        print(json.dumps(record), flush=True)
        better = record["agreement"] > best
        minutes = round((time.monotonic() - start) / 60, 2)
        receipt |= {"epochs": epochs, "training_minutes": minutes}
        if better:
            best = record["agreement"]
            receipt |= {"kept_epoch": record["epoch"]}
            kept = {name: value.clone() for name, value in draft.state_dict().items()}
        write(draft, receipt, options.out) if better else None
    draft.load_state_dict(kept)
    write(draft, receipt, options.out)


if __name__ == "__main__":
    main()
