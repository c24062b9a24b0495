"""Draws the chains of sampled requests from the drafter's own distribution, as the target draws from its own."""

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from draftyard.engine.drafter_network import DraftVocabulary
from draftyard.engine.sampling import adjusted, distribution, draw, needs_history
from draftyard.engine.sequence import Sequence
from draftyard.engine.tree_growth import likeliest


class ChainDraws:
    """Picks one child a level for each sequence; `probabilities[i]` are the distributions sequence i drew from.

    A token drawn from q stands with probability sum min(p, q), the likeliest one alone with p of it, which is less when
    the drafter is close. `lengths[i]` tokens are drawn for sequence i and no more, so that its random
    numbers do not depend on who is drafted with it; what is picked behind them must not be used.
    """

    def __init__(self, sequences: Many[Sequence], lengths: Many[int], vocabulary: DraftVocabulary, whole: int) -> None:
        """`whole` is the number of the target's tokens."""
        self.probabilities: list[list[Tensor]] = [[] for _ in sequences]
        self._drawn: list[list[int]] = [[] for _ in sequences]
        self._sequences = tuple(sequences)
        self._lengths = tuple(lengths)
        self._vocabulary = vocabulary
        self._whole = whole

    def __call__(self, level: int, width: int, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest row for greedy requests, a drawn one for sampled ones."""
        rows, logs = likeliest(level, width, logits)
        for index, (sequence, length) in enumerate(zip(self._sequences, self._lengths, strict=True)):
            if not sequence.request.sampling.greedy and level < length:
                rows[index] = self._draw(index, sequence, logits[index, 0])
                logs[index] = 0.0  # of a chain only the depth counts
        return rows, logs

    def _draw(self, index: int, sequence: Sequence, logits: Tensor) -> int:
        request, drawn = sequence.request, self._drawn[index]
        whole = self._vocabulary.spread(logits, self._whole)
        if needs_history(request):
            whole = adjusted(whole, request, [*sequence.tokens, *drawn])
        probabilities = distribution(whole, request.sampling)
        row = draw(self._vocabulary.gather(probabilities), sequence.generator)
        self.probabilities[index].append(probabilities)
        drawn.append(int(self._vocabulary.token_ids(torch.tensor(row, device=logits.device))))
        return row
