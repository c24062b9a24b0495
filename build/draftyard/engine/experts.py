"""A sparse feed-forward: a router sends each token to a few experts, and an expert works once on all of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftyard.engine.linear import Linear


@dataclass(frozen=True, slots=True)
class Expert:
    """One gated feed-forward; `up_gate` gives the linear rows first, then the activated ones.

    The order of TensorRT-LLM 1.2.1 (layers/moe.py), the reverse of its dense layer's.
    """

    up_gate: Linear
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        up, gate = self.up_gate(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class SparseFeedForward:
    """Mixtral's feed-forward (Jiang et al., "Mixtral of Experts", section 2.1).

    The router is multiplied and its softmax taken in float32; the scores of the chosen experts are scaled to sum 1
    when `normalise` (TensorRT-LLM's MoeNormalizationMode RENORMALIZE).
    """

    def __init__(self, router: Tensor, experts: Sequence[Expert], per_token: int, normalise: bool) -> None:
        """`router` is [experts, hidden] in float32; each token goes to `per_token` experts."""
        self._router = router
        self._experts = tuple(experts)
        self._per_token = per_token
        self._normalise = normalise

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; tokens are grouped by expert, so each weight is read once a pass.

        The contributions to a token are added in the order of its experts' indices, whoever else is in the pass.
        """
        scores, chosen = functional.linear(x.float(), self._router).softmax(dim=-1).topk(self._per_token, dim=-1)
        if self._normalise:
            scores = scores / scores.sum(dim=-1, keepdim=True)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        tokens, weights = order // self._per_token, scores.flatten()[order].unsqueeze(1)
        output = torch.zeros_like(x)
        begin = 0
        for expert, count in zip(self._experts, flat.bincount(minlength=len(self._experts)).tolist(), strict=True):
            if count:
                rows = tokens[begin : begin + count]
                part = expert(x[rows]) * weights[begin : begin + count]
                output.index_add_(0, rows, part.to(x.dtype))
                begin += count
        return output
