"""The network of a drafter that reads the target's features: EAGLE, EAGLE-3 and MTP share all but how they begin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftyard.engine.decoder import Decoder
from draftyard.engine.runs import Window

Norm = Callable[[Tensor], Tensor]


class Junction(Protocol):
    """How a drafter joins an embedding and a state into the stream that its layers transform."""

    def enter(self, features: Tensor) -> Tensor:
        """States [n, hidden] from the target's features [n, len(taps) * target hidden]."""
        ...

    def join(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """A new stream [n, hidden], and what the first layer's attention reads if not that stream, normed."""
        ...


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Row i of a drafter's head is token i + `offsets[i]` of the target (EAGLE-3's d2t; None: the same rows).

    A reduced vocabulary of frequent tokens makes the head, most of a small drafter, cheap: Zhao et al., "FR-Spec"
    (2025).
    """

    size: int
    offsets: Tensor | None

    def token_ids(self, rows: Tensor) -> Tensor:
        """The target's ids of rows of the head."""
        return rows if self.offsets is None else rows + self.offsets[rows]

    def gather(self, values: Tensor) -> Tensor:
        """[vocabulary] of the target -> [size], the rows of the head."""
        return values if self.offsets is None else values[self._every_token_id(values.device)]

    def spread(self, logits: Tensor, vocabulary: int) -> Tensor:
        """[size] -> [vocabulary] of the target; what the head does not hold is impossible."""
        if self.offsets is None:
            return logits
        whole = torch.full((vocabulary,), float("-inf"), dtype=logits.dtype, device=logits.device)
        whole[self._every_token_id(logits.device)] = logits
        return whole

    def _every_token_id(self, device: torch.device) -> Tensor:
        return self.token_ids(torch.arange(self.size, device=device))


class DrafterNetwork:
    """Row i of its cache is position i: the target's feature f_i of token t_i, joined with token t_{i+1}.

    What comes out is a state that stands for f_{i+1}, and its logits are those of t_{i+2}. A drafted token has no
    feature yet; the state that its parent's row gave takes the feature's place. `states_normed`: the state is the
    output of the final norm (MTP), not what goes into it.
    """

    def __init__(
        self, decoder: Decoder, junction: Junction, vocabulary: DraftVocabulary, *, states_normed: bool = False
    ) -> None:
        self.shape = decoder.shape
        self.vocabulary = vocabulary
        self._decoder = decoder
        self._junction = junction
        self._states_normed = states_normed
        self._type = decoder.weights.layers[0].post_norm.dtype

    def enter(self, features: Tensor) -> Tensor:
        """States of tokens whose target features are known."""
        return self._junction.enter(features.to(self._type))

    def forward(self, windows: Sequence[Window], token_ids: Tensor, states: Tensor) -> Tensor:
        """States [n, hidden] that come out for `token_ids` [n], each joined with its `states` row; keys are stored."""
        stream, first = self._junction.join(self._decoder.embed(token_ids), states)
        stream = self._decoder.transform(windows, stream, first)
        return self._decoder.normed(stream) if self._states_normed else stream

    def logits(self, states: Tensor) -> Tensor:
        """float32 [n, draft vocabulary] of the token behind the one that a state came from."""
        return self._decoder.project(states if self._states_normed else self._decoder.normed(states))


def causal_window(slot: int, start: int, count: int) -> Window:
    """`count` tokens that follow each other behind the `start` rows of a slot."""
    positions = range(start, start + count)
    if count == 1:
        return Window(slot, start, positions, None)
    mask = torch.full((count, count), float("-inf")).triu_(diagonal=1)
    return Window(slot, start, positions, torch.cat((torch.zeros(count, start), mask), dim=1))


def tree_window(slot: int, prefix: int, depth: int, sees: Tensor) -> Window:
    """Nodes of one level of a tree behind `prefix` rows; `sees` [m, R + m]: R rows of the tree were fed before them."""
    nodes, rows = sees.shape
    positions = [prefix + depth] * nodes
    if bool(sees.all()):
        return Window(slot, prefix + rows - nodes, positions, None)
    mask = torch.zeros(nodes, prefix + rows, device=sees.device)
    mask[:, prefix:].masked_fill_(~sees, float("-inf"))
    return Window(slot, prefix + rows - nodes, positions, mask)
