"""Medusa's heads: from the target's last hidden state to candidates for each of the next tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftyard.engine.linear import Linear
from draftyard.engine.weights import MakeLinear, RankFiles


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """Residual blocks and a vocabulary projection [vocabulary, hidden]; None where it is the target's own."""

    blocks: tuple[Linear, ...]
    projection: Linear | None

    def state(self, hidden: Tensor) -> Tensor:
        """x + silu(W x + b), block after block; [n, hidden] -> [n, hidden]."""
        for block in self.blocks:
            hidden = hidden + functional.silu(block(hidden))
        return hidden


class MedusaHeads:
    """Head i predicts token i + 2 behind a hidden state, where the target's own head predicts token 1.

    `project` is the target's head; heads that share it are multiplied together, so that its weight is read once.
    """

    def __init__(self, heads: Sequence[MedusaHead], project: Callable[[Tensor], Tensor], vocabulary: int) -> None:
        self._heads = tuple(heads)
        self._project = project
        self._vocabulary = vocabulary

    def candidates(self, hidden: Tensor, widths: Sequence[int]) -> list[list[list[int]]]:
        """Likeliest token ids of each head and each row of `hidden` [n, hidden], the `widths[i]` best of head i."""
        states = [head.state(hidden) for head, _ in zip(self._heads, widths, strict=False)]
        logits = self._logits(states)
        return [
            rows[:, : self._vocabulary].topk(width).indices.tolist() for rows, width in zip(logits, widths, strict=True)
        ]

    def _logits(self, states: Sequence[Tensor]) -> list[Tensor]:
        heads = self._heads[: len(states)]
        sharing = [state for head, state in zip(heads, states, strict=True) if head.projection is None]
        shared = iter(self._project(torch.cat(sharing)).chunk(len(sharing)) if sharing else ())
        return [
            next(shared) if head.projection is None else head.projection(state)
            for head, state in zip(heads, states, strict=True)
        ]


def read_medusa_heads(
    ranks: RankFiles, heads: int, layers: int, vocabulary: int, linear: MakeLinear
) -> list[MedusaHead]:
    """Heads from the target's rank files; all three kinds of tensors are split over ranks along dimension 0.

    Names as TensorRT-LLM 1.2.1 writes them: `medusa_heads.N.medusa_layers.M.linear.{weight,bias}` and
    `medusa_heads.N.lm_head.weight`. A projection with the target's very bytes is not held twice.
    """
    tied = not ranks.has(None, "lm_head.weight")
    own = ranks.whole(None, "transformer.vocab_embedding.weight", None) if tied else _joined(ranks, "lm_head.weight")
    found = []
    for head in range(heads):
        names = [f"medusa_heads.{head}.medusa_layers.{layer}.linear" for layer in range(layers)]
        blocks = [linear(_joined(ranks, f"{name}.weight"), _joined(ranks, f"{name}.bias")) for name in names]
        projection = _joined(ranks, f"medusa_heads.{head}.lm_head.weight")[:vocabulary]
        shared = torch.equal(projection, own[:vocabulary])
        found.append(MedusaHead(tuple(blocks), None if shared else linear(projection)))
    return found


def _joined(ranks: RankFiles, name: str) -> Tensor:
    return ranks.whole(None, name, 0)
