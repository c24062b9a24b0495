"""One forward pass of a decoder over the new tokens of several sequences, each with its own keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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


@dataclass(frozen=True, slots=True)
class Window:
    """New tokens of one sequence without their ids: the rows `start` on of `slot`, and what they see.

    `positions` of each new token; `mask` [new, start + new] is additive, None when all is seen.
    """

    slot: int
    start: int
    positions: Sequence[int]
    mask: Tensor | None


class KeyValueCache:
    """Keys and values: per layer one row per slot and position, keys of all KV heads before values.

    Memory is touched only where it is written, so what a slot never holds costs nothing on a CPU.
    """

    def __init__(
        self, shape: DecoderShape, slots: int, positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.positions = positions
        size = (slots * positions, 2 * shape.kv_heads * shape.head_size)
        self.rows = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]

    def keep(self, slot: int, start: int, kept: Sequence[int]) -> None:
        """Move the rows of the accepted path of a tree, `start + kept[j]` to `start + j`; `kept` must ascend.

        What was at `start` and behind it is a chain afterwards, as if its tokens had been fed one by one.
        """
        if any(later <= earlier for earlier, later in pairwise((-1, *kept))):
            raise ValueError(f"the kept rows {list(kept)} do not ascend from 0 on")
        moved = [(target, source) for target, source in enumerate(kept) if target != source]
        if not moved:
            return
        first = slot * self.positions + start + moved[0][0]
        sources = torch.tensor([slot * self.positions + start + source for _, source in moved])
        for rows in self.rows:
            # Indexing copies the sources out first, so that targets may overlap them.
            rows[first : first + len(moved)] = rows[sources.to(rows.device)]


@dataclass(frozen=True, slots=True)
class _Span:
    """The packed rows `begin` to `end` of one run, the cache rows it looks at, and its mask over them."""

    begin: int
    end: int
    first: int
    last: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class _Pass:
    """Index tensors that all layers of one pass share."""

    places: Tensor
    rotations: Tensor
    spans: tuple[_Span, ...]


class Decoder:
    """Weights, rotations and cache of one network."""

    def __init__(
        self, shape: DecoderShape, weights: DecoderWeights, slots: int, positions: int, device: torch.device
    ) -> None:
        self.shape = shape
        self.weights = weights
        self._device = device
        self._type = weights.layers[0].post_norm.dtype
        self._rotations = rotary_table(shape, positions, device)
        self.cache = KeyValueCache(shape, slots, positions, device, self._type)

    def forward(self, runs: Sequence[Run]) -> Tensor:
        """Logits float32 [wanted, vocabulary] of the wanted tokens, run after run; keys and values are stored."""
        return self._logits(runs, self._stream(runs, {}))

    def forward_with_features(self, runs: Sequence[Run], taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Logits as of `forward`, and features [all new tokens in run order, len(taps) * hidden], tap after tap.

        Tap k >= 0 is the residual stream after k layers (0: the embedding), -1 the output of the final norm. They have
        the type of activations.
        """
        strange = [tap for tap in taps if not -1 <= tap <= self.shape.layers]
        if strange:
            raise ValueError(f"taps {strange} are outside -1..{self.shape.layers}")
        tapped = dict.fromkeys(taps, torch.empty(0))
        hidden = self._stream(runs, tapped)
        if -1 in tapped:
            tapped[-1] = self.normed(hidden)
        features = torch.cat([tapped[tap] for tap in taps], dim=1) if taps else hidden[:, :0]
        return self._logits(runs, hidden), features

    def embed(self, token_ids: Tensor) -> Tensor:
        """[n] ids -> [n, hidden] in the type of activations."""
        return functional.embedding(token_ids, self.weights.embedding).to(self._type)

    def normed(self, hidden: Tensor) -> Tensor:
        """The output of the final norm, of a network that has one."""
        return self._norm(hidden, self.weights.final_norm)

    def project(self, normed: Tensor) -> Tensor:
        """Logits float32 [n, vocabulary of the head]."""
        return self.weights.head(normed).float()

    def transform(self, windows: Sequence[Window], hidden: Tensor, first: Tensor | None = None) -> Tensor:
        """The stream behind the last layer from the stream before the first, [new tokens, hidden]; keys are stored.

        `hidden` is overwritten. `first` is what the attention of the first layer reads where that is not the normed
        stream (drafters that read an embedding beside it).
        """
        return self._layers(hidden, first, self._shared(windows), {})

    def _stream(self, runs: Sequence[Run], tapped: dict[int, Tensor]) -> Tensor:
        """The residual stream [new tokens, hidden] behind the last layer; keys of `tapped` get it as of their layer."""
        ids = torch.tensor([token for run in runs for token in run.token_ids], device=self._device)
        return self._layers(self.embed(ids), None, self._prepare(runs), tapped)

    def _layers(self, hidden: Tensor, first: Tensor | None, shared: _Pass, tapped: dict[int, Tensor]) -> Tensor:
        for layer, (weights, cached) in enumerate(zip(self.weights.layers, self.cache.rows, strict=True)):
            if layer in tapped:
                tapped[layer] = hidden.clone()
            read = self._norm(hidden, weights.input_norm) if first is None or layer else first
            hidden += self._attention(weights, cached, read, shared)
            hidden += weights.feed_forward(self._norm(hidden, weights.post_norm))
        if self.shape.layers in tapped:
            tapped[self.shape.layers] = hidden
        return hidden

    def _logits(self, runs: Sequence[Run], hidden: Tensor) -> Tensor:
        rows = _wanted_rows(runs)
        if len(rows) != len(hidden):
            hidden = hidden[torch.tensor(rows, dtype=torch.long, device=self._device)]
        return self.project(self.normed(hidden))

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """RMS norm; a norm that a network does not have changes nothing."""
        return x if weight is None else functional.rms_norm(x, (x.shape[-1],), weight, self.shape.norm_epsilon)

    def _prepare(self, runs: Sequence[Run]) -> _Pass:
        return self._shared(
            [
                Window(run.slot, run.start, [run.start + depth for depth in run_depths(run)], run_mask(run))
                for run in runs
            ]
        )

    def _shared(self, windows: Sequence[Window]) -> _Pass:
        positions: list[int] = []
        places: list[int] = []
        spans: list[_Span] = []
        begin = 0
        for window in windows:
            count, first = len(window.positions), window.slot * self.cache.positions
            start, last = first + window.start, first + window.start + count
            positions.extend(window.positions)
            places.extend(range(start, last))
            mask = window.mask
            folded = None if mask is None else mask.repeat(self.shape.group, 1).to(self._device, self._type)
            spans.append(_Span(begin, begin + count, first, last, folded))
            begin += count
        index = torch.tensor([positions, places], device=self._device)
        return _Pass(index[1], self._rotations[index[0]].unsqueeze(1), tuple(spans))

    def _attention(self, weights: LayerWeights, cached: Tensor, x: Tensor, shared: _Pass) -> Tensor:
        shape = self.shape
        projected = weights.qkv(x)
        heads = projected.view(x.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_size)
        self._turn(heads[:, : shape.heads + shape.kv_heads], weights, shared.rotations)
        cached.index_copy_(0, shared.places, projected[:, shape.heads * shape.head_size :])
        mixed = [self._attend(heads[span.begin : span.end, : shape.heads], cached, span) for span in shared.spans]
        return weights.dense(mixed[0] if len(mixed) == 1 else torch.cat(mixed))

    def _attend(self, queries: Tensor, cached: Tensor, span: _Span) -> Tensor:
        """Grouped-query attention: queries that share a KV head are folded into rows, so its keys are read once."""
        shape, count = self.shape, queries.shape[0]
        context = cached[span.first : span.last].view(-1, 2, shape.kv_heads, shape.head_size)
        keys, values = context.permute(1, 2, 0, 3).unsqueeze(1)
        folded = queries.view(count, shape.kv_heads, shape.group, shape.head_size).permute(1, 2, 0, 3)
        folded = folded.reshape(1, shape.kv_heads, shape.group * count, shape.head_size)
        out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=span.mask)
        if count == 1:
            return out.reshape(1, -1)
        return out.view(shape.heads, count, shape.head_size).transpose(0, 1).reshape(count, -1)

    def _turn(self, heads: Tensor, weights: LayerWeights, rotations: Tensor) -> None:
        """Norms of Qwen3, then the rotation by position, of queries and keys together and in place.

        `read_weights` put the two halves of each rotated pair side by side, so a pair is one complex number. Narrow
        types are turned in float32: they have no complex number of their own.
        """
        if weights.q_norm is not None and weights.k_norm is not None:
            queries, keys = heads[:, : self.shape.heads], heads[:, self.shape.heads :]
            queries.copy_(self._norm(queries, weights.q_norm))
            keys.copy_(self._norm(keys, weights.k_norm))
        if heads.dtype is torch.float32:
            torch.view_as_complex(heads.view(*heads.shape[:2], -1, 2)).mul_(rotations)
            return
        turned = torch.view_as_complex(heads.float().reshape(*heads.shape[:2], -1, 2)) * rotations
        heads.copy_(torch.view_as_real(turned).flatten(-2))


def _wanted_rows(runs: Sequence[Run]) -> list[int]:
    rows: list[int] = []
    begin = 0
    for run in runs:
        rows.extend(range(begin + run.logits_from, begin + len(run.token_ids)))
        begin += len(run.token_ids)
    return rows
