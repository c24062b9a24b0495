"""The EAGLE head as it is trained: one decoder layer that guesses the target's next feature, step upon step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from engines.demo.features import Seen
from torch import Tensor, nn
from torch.nn import functional

ROTARY_BASE = 100000.0
NORM_EPSILON = 1e-5
HEAD_SIZE = 64


@dataclass(frozen=True, slots=True)
class Pairs:
    """Texts in a batch as pairs (embedding of token i + 1, feature i), padded on the right.

    Pairs `first` + j of each row (j below `counts`) guess answer token j + 1, which no earlier step decided: the
    answer's token 0 comes from the prefill.
    """

    embedded: Tensor
    features: Tensor
    first: Tensor
    counts: Tensor

    @property
    def taught(self) -> Tensor:
        """[rows, most counts] index of each row's taught pairs, the last repeated where a row has fewer."""
        places = self.first[:, None] + torch.arange(int(self.counts.max()))
        return places.minimum((self.first + self.counts - 1)[:, None])

    def valid(self, step: int) -> Tensor:
        """[rows, most counts]: pairs that are taught at drafting step `step` (0 sees true features alone)."""
        places = torch.arange(int(self.counts.max()))
        return (places < self.counts[:, None]) & (places >= step)


def pairs_of(batch: list[Seen], embedding: Tensor) -> Pairs:
    """Pad and embed; texts whose answer is one token have nothing to teach and must not be among them."""
    width = max(len(one.tokens) for one in batch) - 1
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    features = torch.zeros(len(batch), width, embedding.shape[1])
    for row, one in enumerate(batch):
        count = len(one.tokens) - 1
        ids[row, :count] = torch.tensor(one.tokens[1:])
        features[row, :count] = one.features[:-1].float()
    first = torch.tensor([len(one.text.prompt) - 1 for one in batch])
    counts = torch.tensor([len(one.text.answer) - 1 for one in batch])
    return Pairs(functional.embedding(ids, embedding), features, first, counts)


class EagleHead(nn.Module):
    """fc over [embedding | feature], attention and feed-forward as in Llama, no norm before the attention.

    Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty"; the guesses of one step are the
    features of the next, as in training, so in use.
    """

    def __init__(self, hidden: int, heads: int, kv_heads: int, intermediate: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.fc = nn.Linear(2 * hidden, hidden)
        self.q_proj = nn.Linear(hidden, heads * HEAD_SIZE, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * HEAD_SIZE, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * HEAD_SIZE, bias=False)
        self.o_proj = nn.Linear(heads * HEAD_SIZE, hidden, bias=False)
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)
        self.post_norm = nn.Parameter(torch.ones(hidden))
        self.dropout = nn.Dropout(dropout)
        for name, value in self.named_parameters():
            if name.endswith("proj.weight"):
                small = 0.2 if name.startswith(("o_", "down_")) else 1.0
                nn.init.normal_(value, std=0.02 * small)

    def forward(self, pairs: Pairs, steps: int) -> list[Tensor]:
        """Guessed features [rows, most counts, hidden] of each drafting step; `Pairs.valid` says which count.

        Step k works on features that step k - 1 guessed, attends to true pairs that lie more than k before it, and to
        the pairs of the earlier steps on its own path, as the engine does while it drafts.
        """
        places = pairs.taught
        mixed = self.fc(torch.cat((pairs.embedded, pairs.features), dim=-1))
        angles = rotations(mixed.shape[1])
        keys, values = self._keys_values(mixed, angles)
        embedded, hidden = _picked(pairs.embedded, places), _picked(mixed, places)
        turned = angles[places]
        earlier: list[tuple[Tensor, Tensor]] = []
        guesses: list[Tensor] = []
        for step in range(steps):
            if step:
                hidden = self.fc(torch.cat((embedded, _later(guesses[-1], 1)), dim=-1))
                earlier = [(_later(key, 1), _later(value, 1)) for key, value in earlier]
                earlier.append(self._own_keys_values(hidden, turned))
            seen = torch.arange(mixed.shape[1]) <= places[..., None] - step
            out = hidden + self.dropout(self._attend(hidden, turned, (keys, values), seen, earlier))
            guesses.append(out + self.dropout(self._feed_forward(out)))
        return guesses

    def _keys_values(self, mixed: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        rows, count, _ = mixed.shape
        keys = self.k_proj(mixed).view(rows, count, self.kv_heads, HEAD_SIZE)
        return turn(keys, angles[None, :, None]), self.v_proj(mixed).view(rows, count, self.kv_heads, HEAD_SIZE)

    def _own_keys_values(self, hidden: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        rows, count, _ = hidden.shape
        keys = self.k_proj(hidden).view(rows, count, self.kv_heads, HEAD_SIZE)
        return turn(keys, turned[:, :, None]), self.v_proj(hidden).view(rows, count, self.kv_heads, HEAD_SIZE)

    def _attend(
        self,
        hidden: Tensor,
        turned: Tensor,
        true: tuple[Tensor, Tensor],
        seen: Tensor,
        earlier: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Attention over true pairs where `seen` [rows, taught, pairs] allows, and a pair of each earlier step."""
        rows, count, _ = hidden.shape
        group = self.heads // self.kv_heads
        queries = turn(self.q_proj(hidden).view(rows, count, self.heads, HEAD_SIZE), turned[:, :, None])
        queries = queries.view(rows, count, self.kv_heads, group, HEAD_SIZE) / math.sqrt(HEAD_SIZE)
        scores = torch.einsum("rckgd,rtkd->rckgt", queries, true[0]).masked_fill(~seen[:, :, None, None], -torch.inf)
        single = [torch.einsum("rckgd,rckd->rckg", queries, key)[..., None] for key, _ in earlier]
        shares = torch.cat([scores, *single], dim=-1).softmax(dim=-1)
        out = torch.einsum("rckgt,rtkd->rckgd", shares[..., : true[0].shape[1]], true[1])
        for index, (_, value) in enumerate(earlier):
            out = out + shares[..., true[0].shape[1] + index, None] * value[:, :, :, None]
        return self.o_proj(out.reshape(rows, count, -1))

    def _feed_forward(self, out: Tensor) -> Tensor:
        x = functional.rms_norm(out, (out.shape[-1],), self.post_norm, NORM_EPSILON)
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))

    def stored(self) -> dict[str, Tensor]:
        """Names of the published layout, float16; embedding, vocabulary rows and `d2t` come from the target."""
        names = {"post_norm": "layers.0.post_attention_layernorm.weight"}
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            names[f"{name}.weight"] = f"layers.0.self_attn.{name}.weight"
        for name in ("gate_proj", "up_proj", "down_proj"):
            names[f"{name}.weight"] = f"layers.0.mlp.{name}.weight"
        return {
            names.get(name, name): value.detach().to(torch.float16).contiguous()
            for name, value in self.named_parameters()
        }


def rotations(count: int) -> Tensor:
    """[positions, head size / 2] angles."""
    frequencies = ROTARY_BASE ** -(torch.arange(0, HEAD_SIZE, 2, dtype=torch.float32) / HEAD_SIZE)
    return torch.outer(torch.arange(count, dtype=torch.float32), frequencies)


def turn(vectors: Tensor, angles: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head size / 2) of `vectors` by `angles` (GPT-NeoX order)."""
    low, high = vectors.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)


def _picked(values: Tensor, places: Tensor) -> Tensor:
    """values [rows, pairs, hidden] at `places` [rows, taught]."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))


def _later(values: Tensor, by: int) -> Tensor:
    """values [rows, taught, ...] moved `by` places on; the first places are filled with zeros."""
    moved = torch.zeros_like(values)
    moved[:, by:] = values[:, :-by]
    return moved
