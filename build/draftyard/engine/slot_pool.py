"""Free slots of the cache, and what of a new prompt already lies in one of them or in a running sequence's."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftyard.engine import sequence as running_sequence


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a new sequence goes: the first `reused` positions are those of slot `source` (perhaps `slot` itself)."""

    slot: int
    source: int
    reused: int


class SlotPool:
    """The slot that has been free for longest is given away first; until then it keeps what it holds."""

    def __init__(self, slots: int) -> None:
        self._free: dict[int, tuple[int, ...]] = dict.fromkeys(range(slots), ())

    def __len__(self) -> int:
        return len(self._free)

    def take_blank(self) -> int:
        """The next slot, for a use that reuses nothing; it must be given back."""
        slot = next(iter(self._free))
        del self._free[slot]
        return slot

    def take(self, prompt: Sequence[int], running: Iterable[running_sequence.Sequence]) -> Placement:
        """A slot for a prompt, and the longest beginning of it whose keys and values are somewhere.

        The prompt's last token is never reused: its logits are wanted. A free slot whose whole content is reused is
        taken as it is, for nothing is lost by that; any other content is copied, and lives on where it was.
        """
        held = {one.slot: one.tokens[: one.cached] for one in running}
        held.update((slot, list(tokens)) for slot, tokens in self._free.items())
        shared = {slot: common_prefix(prompt[:-1], tokens) for slot, tokens in held.items()}
        source = max(shared, key=lambda slot: (shared[slot], slot in self._free))
        if shared[source] == 0:
            slot = self.take_blank()
            return Placement(slot, slot, 0)
        if source in self._free and shared[source] == len(self._free[source]):
            del self._free[source]
            return Placement(source, source, shared[source])
        return Placement(self.take_blank(), source, shared[source])

    def give_back(self, slot: int, tokens: Sequence[int]) -> None:
        """A slot is free; the keys and values of `tokens` lie at its beginning."""
        self._free[slot] = tuple(tokens)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))
