"""What one pass is asked: new tokens of each sequence, where they go, and what they see."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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


@dataclass(frozen=True, slots=True)
class Window:
    """New tokens of one sequence without their ids: the rows `start` on of `slot`, and what they see.

    `positions` of each new token; `mask` [new, start + new] is additive, None when all is seen.
    """

    slot: int
    start: int
    positions: Sequence[int]
    mask: Tensor | None

    @property
    def end(self) -> int:
        """Rows in the slot after the pass: what the new tokens look at."""
        return self.start + len(self.positions)


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


def run_window(run: Run) -> Window:
    """The window of a run."""
    return Window(run.slot, run.start, [run.start + depth for depth in run_depths(run)], run_mask(run))


def wanted_rows(runs: Sequence[Run]) -> list[int]:
    """Packed rows whose logits are wanted, run after run."""
    rows: list[int] = []
    begin = 0
    for run in runs:
        rows.extend(range(begin + run.logits_from, begin + len(run.token_ids)))
        begin += len(run.token_ids)
    return rows
