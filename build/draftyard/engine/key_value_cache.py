"""Keys and values of the tokens of all sequences, one slot a sequence."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from draftyard.engine.configuration import DecoderShape

# Groups of sequences look at whole multiples of so many positions, so there is room for that many.
ROUNDED_TO = 16


class KeyValueCache:
    """Per layer [slots * KV heads, positions, head size] of keys and as many of values, the heads of a slot together.

    Memory is touched only where it is written, so what a slot never holds costs nothing on a CPU.
    """

    def __init__(
        self, shape: DecoderShape, slots: int, positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.positions = positions
        room = -(-positions // ROUNDED_TO) * ROUNDED_TO
        size = (2, slots, shape.kv_heads, room, shape.head_size)
        self._pairs = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.keys = [pair[0].flatten(0, 1) for pair in self._pairs]
        self.values = [pair[1].flatten(0, 1) for pair in self._pairs]

    def store(self, layer: int, slots: Tensor, positions: Tensor, pairs: Tensor) -> None:
        """Write key and value of each token, `pairs` [tokens, 2, KV heads, head size], to its slot and position."""
        self._pairs[layer][:, slots, :, positions] = pairs

    def keep(self, slot: int, start: int, kept: Sequence[int]) -> None:
        """Move the rows of the accepted path of a tree, `start + kept[j]` to `start + j`; `kept` must ascend.

        What was at `start` and behind it is a chain afterwards, as if its tokens had been fed one by one.
        """
        if any(later <= earlier for earlier, later in pairwise((-1, *kept))):
            raise ValueError(f"the kept rows {list(kept)} do not ascend from 0 on")
        moved = [(target, source) for target, source in enumerate(kept) if target != source]
        if not moved:
            return
        first = start + moved[0][0]
        sources = torch.tensor([start + source for _, source in moved], device=self._pairs[0].device)
        for pair in self._pairs:
            # Indexing copies the sources out first, so that targets may overlap them.
            pair[:, slot, :, first : first + len(moved)] = pair[:, slot].index_select(2, sources)

    def copy(self, source: int, target: int, count: int) -> None:
        """The first `count` positions of a slot to another."""
        for pair in self._pairs:
            pair[:, target, :, :count] = pair[:, source, :, :count]

    def clear(self, slot: int, count: int) -> None:
        """Zeros for the first `count` positions of a slot.

        A padded group reads behind a sequence's end what an earlier one left there, weighted by zero, and zero times
        what is no finite number is no number: whoever leaves such things behind has to clear them.
        """
        for pair in self._pairs:
            pair[:, slot, :, :count] = 0.0
