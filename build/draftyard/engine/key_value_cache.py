"""Keys and values of the tokens of all sequences, one slot a sequence."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from draftyard.engine.configuration import DecoderShape

# Rows of keys begin on a cache line, and their distance is an odd number of lines: at a power of two they would all
# fall into the same few sets of the processor's caches.
LINE = 16


class KeyValueCache:
    """Per layer keys [slots, KV heads, head size, positions] and values [slots, KV heads, positions, head size].

    Keys lie transposed because the product with a few queries then reads them as it likes them best. Memory is touched
    only where it is written, so what a slot never holds costs nothing on a CPU.
    """

    def __init__(
        self, shape: DecoderShape, slots: int, positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.positions = positions
        self.room = (-(-positions // LINE) | 1) * LINE
        keys, values = (
            (slots, shape.kv_heads, shape.head_size, self.room),
            (slots, shape.kv_heads, self.room, shape.head_size),
        )
        self.keys = [torch.zeros(keys, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.zeros(values, dtype=dtype, device=device) for _ in range(shape.layers)]

    def store(self, layer: int, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [tokens, KV heads, head size] of one layer to a slot and position each."""
        self.keys[layer][slots, :, :, positions] = keys
        self.values[layer][slots, :, positions] = values

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
        sources = torch.tensor([start + source for _, source in moved], device=self.keys[0].device)
        for keys, values in zip(self.keys, self.values, strict=True):
            # Indexing copies the sources out first, so that targets may overlap them.
            keys[slot, :, :, first : first + len(moved)] = keys[slot].index_select(2, sources)
            values[slot, :, first : first + len(moved)] = values[slot].index_select(1, sources)

    def copy(self, source: int, target: int, count: int) -> None:
        """The first `count` positions of a slot to another."""
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[target, :, :, :count] = keys[source, :, :, :count]
            values[target, :, :count] = values[source, :, :count]

    def clear(self, slot: int, count: int) -> None:
        """Zeros for the first `count` positions of a slot.

        A padded group reads behind a sequence's end what an earlier one left there, weighted by zero, and zero times
        what is no finite number is no number: whoever leaves such things behind has to clear them.
        """
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[slot, :, :, :count] = 0.0
            values[slot, :, :count] = 0.0
