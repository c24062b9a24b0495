"""What a head is taught: the target's own distribution, over the columns of the vocabulary that a step computes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from engines.demo.training_text import Answer
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Columns:
    """The ids whose logits a step computes, their rows of the head, and what corrects for those left out."""

    slot_of: Tensor
    rows: Tensor
    offsets: Tensor

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """[positions, columns], corrected by what the drawn columns stand for."""
        logits = hidden @ self.rows.T
        return logits - (logits + self.offsets).logsumexp(dim=-1, keepdim=True)


def draw_columns(needed: Tensor, candidates: Tensor, head: Tensor, drawn: int) -> Columns:
    """All ids of `needed` and `drawn` of the other candidates.

    A drawn one stands for all that were not drawn, so the log of their ratio is added (sampled softmax, Bengio and
    Senecal 2008, with a uniform proposal).
    """
    needed = torch.unique(needed)
    others = candidates[torch.isin(candidates, needed, invert=True)]
    chosen = others[torch.randperm(len(others))[:drawn]]
    ids = torch.cat([needed, chosen])
    offsets = torch.zeros(len(ids))
    offsets[len(needed) :] = math.log(len(others) / max(len(chosen), 1))
    slot_of = torch.zeros(len(head), dtype=torch.long)
    slot_of[ids] = torch.arange(len(ids))
    return Columns(slot_of, head[ids], offsets)


def divergence(columns: Columns, hidden: Tensor, top_ids: Tensor, top: Tensor, hard: float) -> Tensor:
    """Per position KL(target's renormalised tops || head), plus `hard` times the surprise at the most likely token.

    `top_ids` and `top` [positions, tops]; a weight of 0 leaves a token out.
    """
    scores = columns.log_probabilities(hidden).gather(1, columns.slot_of[top_ids])
    soft = (top * (top.clamp_min(1e-8).log() - scores)).sum(dim=-1)
    return soft - hard * scores[:, 0] * (top[:, 0] > 0)


def frequent_ids(answers: list[Answer], count: int, vocabulary: int) -> Tensor:
    """The `count` ids [count], ascending, to which the target gives most probability over the answers."""
    mass = torch.zeros(vocabulary, dtype=torch.float64)
    for one in answers:
        mass.index_add_(0, one.top_ids.flatten(), one.top_probabilities.flatten().double())
    found: Tensor = mass.topk(count).indices.sort().values
    return found


def candidate_ids(answers: list[Answer]) -> Tensor:
    """Ids among the target's tops anywhere in the answers, ascending."""
    found: Tensor = torch.unique(torch.cat([one.top_ids.flatten() for one in answers]))
    return found
