"""One forward pass of a decoder over the new tokens of several sequences, each with its own keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftyard.engine.configuration import DecoderShape
from draftyard.engine.rotary import rotary_table
from draftyard.engine.weights import DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True)
class Run:
    """New tokens of one sequence: they continue the `start` tokens whose keys and values lie in `slot`.

    `parents` gives a tree: parent of each new token as an index into the run, -1 for the cached prefix. None is a
    chain. `logits_from` is the first new token whose logits are wanted; len(token_ids) wants none.
    """

    slot: int
    start: int
    token_ids: tuple[int, ...]
    logits_from: int
    parents: tuple[int, ...] | None = None

    @property
    def end(self) -> int:
        """Tokens in the slot after the pass."""
        return self.start + len(self.token_ids)


def run_depths(run: Run) -> list[int]:
    """Position of each new token behind the cached prefix: its depth in the tree."""
    if run.parents is None:
        return list(range(len(run.token_ids)))
    depths: list[int] = []
    for parent in run.parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def run_mask(run: Run) -> Tensor | None:
    """[new, end] additive mask: each token sees the prefix, its ancestors and itself; None when all is seen."""
    count = len(run.token_ids)
    if count == 1:
        return None
    mask = torch.full((count, count), float("-inf"))
    if run.parents is None:
        mask.triu_(diagonal=1)
    else:
        for index in range(count):
            node = index
            while node >= 0:
                mask[index, node] = 0.0
                node = run.parents[node]
    return torch.cat((torch.zeros(count, run.start), mask), dim=1)


class KeyValueCache:
    """Keys and values [layers, slots, kv_heads, positions, head_size]; memory is touched only where written."""

    def __init__(
        self, shape: DecoderShape, slots: int, positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        size = (shape.layers, slots, shape.kv_heads, positions, shape.head_size)
        self.keys = torch.zeros(size, dtype=dtype, device=device)
        self.values = torch.zeros(size, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class _Pass:
    """Index tensors that all layers of one pass share; a run is (begin row, end row, slot, tokens, mask)."""

    slots: Tensor
    places: Tensor
    cosines: Tensor
    sines: Tensor
    runs: tuple[tuple[int, int, int, int, Tensor | None], ...]


class Decoder:
    """Weights, rotary table and cache of one network."""

    def __init__(
        self, shape: DecoderShape, weights: DecoderWeights, slots: int, positions: int, device: torch.device
    ) -> None:
        self.shape = shape
        self._weights = weights
        self._device = device
        self._type = weights.final_norm.dtype
        self._cosines, self._sines = rotary_table(shape, positions, device)
        self.cache = KeyValueCache(shape, slots, positions, device, self._type)

    def forward(self, runs: Sequence[Run]) -> Tensor:
        """Logits float32 [wanted, vocabulary] of the wanted tokens, run after run; keys and values are stored."""
        ids = torch.tensor([token for run in runs for token in run.token_ids], device=self._device)
        hidden = functional.embedding(ids, self._weights.embedding).to(self._type)
        shared = self._prepare(runs)
        for layer, weights in enumerate(self._weights.layers):
            hidden = hidden + self._attention(layer, weights, self._norm(hidden, weights.input_norm), shared)
            hidden = hidden + self._feed_forward(weights, self._norm(hidden, weights.post_norm))
        rows = _wanted_rows(runs)
        if len(rows) != len(ids):
            hidden = hidden[torch.tensor(rows, dtype=torch.long, device=self._device)]
        return self._weights.head(self._norm(hidden, self._weights.final_norm)).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.shape.norm_epsilon)

    def _prepare(self, runs: Sequence[Run]) -> _Pass:
        slots = [run.slot for run in runs for _ in run.token_ids]
        places = [run.start + index for run in runs for index in range(len(run.token_ids))]
        positions = torch.tensor([run.start + depth for run in runs for depth in run_depths(run)], device=self._device)
        cuts, begin = [], 0
        for run in runs:
            mask = run_mask(run)
            folded = None if mask is None else mask.repeat(self.shape.group, 1).to(self._device, self._type)
            cuts.append((begin, begin + len(run.token_ids), run.slot, run.end, folded))
            begin += len(run.token_ids)
        return _Pass(
            slots=torch.tensor(slots, device=self._device),
            places=torch.tensor(places, device=self._device),
            cosines=self._cosines[positions].unsqueeze(1).to(self._type),
            sines=self._sines[positions].unsqueeze(1).to(self._type),
            runs=tuple(cuts),
        )

    def _attention(self, layer: int, weights: LayerWeights, x: Tensor, shared: _Pass) -> Tensor:
        shape = self.shape
        heads = weights.qkv(x).view(x.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_size)
        turned = self._turn(heads[:, : shape.heads + shape.kv_heads], weights, shared)
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[shared.slots, :, shared.places] = turned[:, shape.heads :]
        values[shared.slots, :, shared.places] = heads[:, shape.heads + shape.kv_heads :]
        mixed = torch.empty(x.shape[0], shape.heads, shape.head_size, dtype=self._type, device=self._device)
        for begin, end, slot, length, mask in shared.runs:
            mixed[begin:end] = self._attend(turned[begin:end, : shape.heads], keys[slot], values[slot], length, mask)
        return weights.dense(mixed.view(x.shape[0], -1))

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, length: int, mask: Tensor | None) -> Tensor:
        """Grouped-query attention: queries that share a KV head are folded into rows, so its keys are read once."""
        shape, count = self.shape, queries.shape[0]
        folded = queries.view(count, shape.kv_heads, shape.group, shape.head_size).permute(1, 2, 0, 3)
        folded = folded.reshape(1, shape.kv_heads, shape.group * count, shape.head_size)
        out = functional.scaled_dot_product_attention(
            folded, keys[None, :, :length], values[None, :, :length], attn_mask=mask
        )
        unfolded = out.view(shape.kv_heads, shape.group, count, shape.head_size).permute(2, 0, 1, 3)
        return unfolded.reshape(count, shape.heads, shape.head_size)

    def _turn(self, heads: Tensor, weights: LayerWeights, shared: _Pass) -> Tensor:
        """Norms of Qwen3, then the rotation by position, for queries and keys together."""
        if weights.q_norm is not None and weights.k_norm is not None:
            queries, keys = heads[:, : self.shape.heads], heads[:, self.shape.heads :]
            heads = torch.cat((self._norm(queries, weights.q_norm), self._norm(keys, weights.k_norm)), dim=1)
        first, second = heads.chunk(2, dim=-1)
        return heads * shared.cosines + torch.cat((-second, first), dim=-1) * shared.sines

    def _feed_forward(self, weights: LayerWeights, x: Tensor) -> Tensor:
        activated, gate = weights.fc_gate(x).chunk(2, dim=-1)
        return weights.proj(functional.silu(activated) * gate)


def _wanted_rows(runs: Sequence[Run]) -> list[int]:
    rows: list[int] = []
    begin = 0
    for run in runs:
        rows.extend(range(begin + run.logits_from, begin + len(run.token_ids)))
        begin += len(run.token_ids)
    return rows
