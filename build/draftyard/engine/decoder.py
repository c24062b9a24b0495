"""One forward pass of a decoder over the new tokens of several sequences, each with its own keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftyard.engine.attention import AttentionPlan, attend, plan_attention
from draftyard.engine.configuration import DecoderShape
from draftyard.engine.key_value_cache import KeyValueCache
from draftyard.engine.rotary import rotary_table
from draftyard.engine.runs import Run, Window, run_window, wanted_rows
from draftyard.engine.scaled_linear import through_fp8
from draftyard.engine.weights import DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True)
class _Pass:
    """What all layers of one pass share."""

    rotations: Tensor
    plan: AttentionPlan


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
        return self._layers(self.embed(ids), None, self._shared([run_window(run) for run in runs]), tapped)

    def _layers(self, hidden: Tensor, first: Tensor | None, shared: _Pass, tapped: dict[int, Tensor]) -> Tensor:
        for layer, weights in enumerate(self.weights.layers):
            if layer in tapped:
                tapped[layer] = hidden.clone()
            read = self._norm(hidden, weights.input_norm) if first is None or layer else first
            hidden += self._attention(layer, weights, read, shared)
            hidden += weights.feed_forward(self._norm(hidden, weights.post_norm))
        if self.shape.layers in tapped:
            tapped[self.shape.layers] = hidden
        return hidden

    def _logits(self, runs: Sequence[Run], hidden: Tensor) -> Tensor:
        rows = wanted_rows(runs)
        if len(rows) != len(hidden):
            hidden = hidden[torch.tensor(rows, dtype=torch.long, device=self._device)]
        return self.project(self.normed(hidden))

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """RMS norm; a norm that a network does not have changes nothing."""
        return x if weight is None else functional.rms_norm(x, (x.shape[-1],), weight, self.shape.norm_epsilon)

    def _shared(self, windows: Sequence[Window]) -> _Pass:
        positions = [position for window in windows for position in window.positions]
        rotations = self._rotations[torch.tensor(positions, device=self._device)]
        return _Pass(rotations.unsqueeze(1), plan_attention(windows, self.shape, self.cache, self._type))

    def _attention(self, layer: int, weights: LayerWeights, x: Tensor, shared: _Pass) -> Tensor:
        shape = self.shape
        heads = weights.qkv(x).view(x.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_size)
        self._turn(heads[:, : shape.heads + shape.kv_heads], weights, shared.rotations)
        pairs = heads[:, shape.heads :].view(x.shape[0], 2, shape.kv_heads, shape.head_size)
        if weights.cache_scale is not None:
            pairs = through_fp8(pairs, weights.cache_scale)
        self.cache.store(layer, shared.plan.slots, shared.plan.positions, pairs)
        return weights.dense(attend(shared.plan, shape, self.cache, layer, heads[:, : shape.heads]))

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
