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
from engines.demo.training_text import HELD_OUT, Answer, Text, batches, candidates
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaModel

HEAD_DIM = 64
CHAIN = 4
DRAWN = 1024
KEPT = Path(__file__).parent / "draft"


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
    rounds: int
    steps_per_round: int
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
                rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
                max_position_embeddings=8192,
                pad_token_id=0,
                use_cache=False,
            )
        )
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Final hidden states [sequences, positions, width] of right-padded `ids`."""
        embedded = self.dropout(functional.embedding(ids, self.embedding) @ self.project_in)
        hidden: Tensor = self.dropout(self.body(inputs_embeds=embedded, attention_mask=mask).last_hidden_state)
        return hidden

    def restore(self, weights: Path) -> None:
        """Go on from stored weights of the same sizes."""
        kept = {name: value.float() for name, value in load_file(weights).items()}
        with torch.no_grad():
            self.project_in.copy_(kept.pop("project_in"))
            self.project_out.copy_(kept.pop("project_out"))
        missing, unknown = self.body.load_state_dict(kept, strict=False)
        if unknown or set(missing) - {"embed_tokens.weight"}:
            raise SystemExit(f"{weights.name} holds another draft: {[*missing, *unknown][:4]}")

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
        embedding: Tensor = file.get_tensor("model.embed_tokens.weight").to(torch.bfloat16).float()
    return embedding


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


def drawn_columns(batch: list[Answer], ids_kept: Tensor) -> tuple[Tensor, Tensor]:
    """The ids whose logits one step computes, and what to add to each logit, both [columns].

    All ids that the batch needs, and a fresh draw of the other candidates. A drawn one stands for all that were not
    drawn, so the log of their ratio is added (sampled softmax, Bengio and Senecal 2008, with a uniform proposal).
    """
    needed = torch.unique(torch.cat([*(a.top_ids.flatten() for a in batch), *(torch.tensor(a.answer) for a in batch)]))
    others = ids_kept[torch.isin(ids_kept, needed, invert=True)]
    drawn = others[torch.randperm(len(others))[:DRAWN]]
    offsets = torch.zeros(len(needed) + len(drawn))
    offsets[len(needed) :] = math.log(len(others) / max(len(drawn), 1))
    return torch.cat([needed, drawn]), offsets


def batch_loss(draft: Draft, batch: list[Answer], ids_kept: Tensor) -> tuple[Tensor, int]:
    """Mean over answer tokens of KL(target's renormalised top 12 || draft) + 0.3 cross-entropy of the chosen token."""
    ids, mask, predicts = padded(batch)
    columns, offsets = drawn_columns(batch, ids_kept)
    slot_of = torch.zeros(len(draft.embedding), dtype=torch.long)
    slot_of[columns] = torch.arange(len(columns))
    hidden = draft(ids, mask)[predicts]
    logits = hidden @ (draft.embedding[columns] @ draft.project_out).T
    log_probabilities = logits - (logits + offsets).logsumexp(dim=-1, keepdim=True)
    top = torch.cat([a.top_probabilities for a in batch])
    top_slots = slot_of[torch.cat([a.top_ids for a in batch])]
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


def train(draft: Draft, text: Text, settings: Settings) -> Iterator[dict[str, float]]:
    """Train round by round; yields each round's record, the draft being left as it is at that point."""
    draw = random.Random(settings.seed)
    matrices = [value for value in draft.parameters() if value.ndim > 1]
    vectors = [value for value in draft.parameters() if value.ndim == 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    steps = settings.rounds * settings.steps_per_round
    check = list(text.held_out)
    for number in range(settings.rounds):
        text.join(number)
        ids_kept = candidates(text.learn)
        draft.train()
        start, total, tokens = time.monotonic(), 0.0, 0
        for turn, batch in enumerate(batches(text.learn, settings.batch, settings.steps_per_round, draw)):
            rate = learning_rate(number * settings.steps_per_round + turn, steps, settings.learning_rate)
            for group in optimiser.param_groups:
                group["lr"] = rate
            loss, count = batch_loss(draft, batch, ids_kept)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            optimiser.step()
            total, tokens = total + loss.item() * count, tokens + count
        score = asdict(measure(draft, check))
        yield {
            "round": number,
            "sequences": len(text.learn),
            "answer_tokens": tokens,
            "passes": round(settings.batch * settings.steps_per_round / len(text.learn), 2),
            "training_loss": round(total / tokens, 4),
            **score,
            "seconds": round(time.monotonic() - start, 1),
        }


def write(draft: Draft, receipt: Mapping[str, object], out: Path) -> None:
    """Write weights.safetensors and receipt.json into `out`; the receipt carries the digest of the weights."""
    out.mkdir(parents=True, exist_ok=True)
    weights = out / "weights.safetensors"
    save_file(draft.stored(), weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    whole = dict(receipt) | {"weights_sha256": digest, "weights_bytes": weights.stat().st_size}
    (out / "receipt.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def facts(draft: Draft, settings: Settings, text: Text, rounds: list[dict[str, float]]) -> dict[str, object]:
    """The receipt without its digest."""
    body = sum(value.numel() for name, value in draft.body.named_parameters() if not name.startswith("embed_tokens"))
    answer_tokens = sum(len(one.answer) for one in text.learn)
    all_tokens = answer_tokens + sum(len(one.prompt) for one in text.learn)
    return {
        "what": "a draft model of SmolLM2-135M-Instruct, trained on the target's own answers to training prompts",
        "settings": asdict(settings),
        "trained_parameters": body + draft.project_in.numel() + draft.project_out.numel(),
        "candidate_ids": len(candidates(text.learn)),
        "candidate_note": f"a step computes logits for the batch's own ids and {DRAWN} drawn candidates, which are "
        "the ids that occur in the text or the target's tops; scores use the full vocabulary",
        "training_sequences": len(text.learn),
        "greedy_sequences": sum(not one.sampled for one in text.learn),
        "training_answer_tokens": answer_tokens,
        "training_tokens": all_tokens,
        "held_out_share_of_prompts": HELD_OUT,
        "generation": {"shards": len(text.joined), "seconds": round(text.seconds, 1)},
        "estimated_flops": estimated_flops(draft, settings, rounds, all_tokens / answer_tokens, body),
        "training_minutes": round(sum(record["seconds"] for record in rounds) / 60, 2),
        "rounds": rounds,
        "shards_joined_in_round": text.joined,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "safetensors": safetensors.__version__,
        },
        "threads": torch.get_num_threads(),
    }


def estimated_flops(
    draft: Draft, settings: Settings, rounds: list[dict[str, float]], spread: float, body: int
) -> float:
    """6 x multiplications of a forward pass (forward and backward), without attention scores and softmax.

    `spread` is all tokens per answer token; each step's columns are the drawn ids and about two for an answer token.
    """
    answer_tokens = sum(record["answer_tokens"] for record in rounds)
    steps = len(rounds) * settings.steps_per_round
    columns = DRAWN + 2 * answer_tokens / max(steps, 1)
    per_answer_token = spread * (body + draft.project_in.numel()) + columns * settings.hidden_size
    return round(6 * (answer_tokens * per_answer_token + steps * columns * draft.project_out.numel()))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="the materialised target's directory")
    parser.add_argument("text", type=Path, help="folder of generate_text.py's shards")
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--intermediate-size", type=int, default=576)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--steps-per-round", type=int, default=250)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--go-on-from", type=Path, help="a draft's folder, whose weights are the start")
    parser.add_argument("--replay", type=Path, help="a receipt whose shards join in the same rounds again")
    return parser.parse_args()


def main() -> None:
    """Train; weights and receipt are written after each round that agrees better on the held-out prompts."""
    options = parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    settings = Settings(**{name: getattr(options, name) for name in Settings.__dataclass_fields__})
    replayed = json.loads(options.replay.read_text())["shards_joined_in_round"] if options.replay else None
    text = Text(options.text, replayed)
    text.join(0)
    draft = Draft(settings, target_embedding(options.target))
    earlier: dict[str, object] = {}
    if options.go_on_from:
        draft.restore(options.go_on_from / "weights.safetensors")
        earlier = {"went_on_from": json.loads((options.go_on_from / "receipt.json").read_text(encoding="utf-8"))}
    best, rounds = {"round": -1.0, "agreement": -1.0}, list[dict[str, float]]()
    kept = dict(draft.state_dict())
    for record in train(draft, text, settings):
        rounds.append(record)
        print(json.dumps(record), flush=True)
        if record["agreement"] > best["agreement"]:
            best, kept = record, {name: value.clone() for name, value in draft.state_dict().items()}
            write(draft, facts(draft, settings, text, rounds) | earlier | {"kept_round": best["round"]}, options.out)
    draft.load_state_dict(kept)
    final = {"kept_round": best["round"], "held_out": asdict(measure(draft, text.held_out))}
    final |= {"held_out_sequences": len(text.held_out), "held_out_tokens": sum(len(a.answer) for a in text.held_out)}
    write(draft, facts(draft, settings, text, rounds) | final | earlier, options.out)
    print(json.dumps(final))


if __name__ == "__main__":
    main()
