"""A speculator for tests that knows how each text goes on and hides that in trees of any shape."""

import random
from collections.abc import Mapping, Sequence

import torch

from draftyard.engine.acceptance import Draft
from draftyard.engine.sequence import Sequence as Decoded


class OracleProposer:
    """Proposes trees that hold the true continuation up to a random depth, among wrong tokens, at random places.

    It checks what the engine promises a proposer: features in order and without gaps, one settling a step, an end.
    `features_of` are expected features of a whole text, or None where it asks for none.
    """

    def __init__(
        self,
        truths: Mapping[str, Sequence[int]],
        vocabulary: int,
        *,
        seed: int = 0,
        most_right: int = 4,
        wrong: int = 8,
        taps: tuple[int, ...] = (-1,),
    ) -> None:
        self.taps = taps
        self.absorbed: dict[str, list[torch.Tensor]] = {}
        self.offered = 0
        self.accepted = 0
        self.known: set[str] = set()
        self._truths = truths
        self._vocabulary = vocabulary
        self._random = random.Random(seed)
        self._most_right = most_right
        self._wrong = wrong
        self._right_now: dict[str, int] = {}

    def propose(self, sequences: Sequence[Decoded], most: Sequence[int]) -> list[Draft]:
        return [self._tree(one, room) for one, room in zip(sequences, most, strict=True)]

    def absorb(self, sequence: Decoded, first_position: int, features: torch.Tensor) -> None:
        name = sequence.request.request_id
        self.known.add(name)
        held = self.absorbed.setdefault(name, [])
        assert first_position == sum(map(len, held)), "features come in order and without gaps"
        held.append(features.clone())
        assert first_position + len(features) == sequence.cached, "for the tokens that are cached now"
        assert sequence.cached < len(sequence.tokens) or sequence.prefilling

    def settle(self, sequence: Decoded, draft: Draft, path: tuple[int, ...]) -> None:
        expected = self._right_now.pop(sequence.request.request_id, 0)
        assert len(path) == expected or sequence.finish_reason is not None
        self.accepted += len(path)

    def forget(self, sequence: Decoded) -> None:
        self.known.discard(sequence.request.request_id)

    def _tree(self, sequence: Decoded, room: int) -> Draft:
        """A path of right tokens, then wrong ones behind random nodes; a wrong token is never the right one there."""
        if room == 0:
            return Draft()
        name = sequence.request.request_id
        rest = list(self._truths[name][sequence.generated :])
        right = self._random.randint(0, min(self._most_right, room, sequence.depth_room, len(rest)))
        # (token, parent in this list or -1, depth of the right path it continues or None)
        nodes: list[tuple[int, int, int | None]] = []
        at, done = -1, 0
        for _ in range(min(room, right + self._random.randint(0, self._wrong))):
            if done < right and self._random.random() < 0.5:
                nodes.append((rest[done], at, done + 1))
                at, done = len(nodes) - 1, done + 1
            else:
                nodes.append(self._wrong_node(nodes, rest))
        self._right_now[name] = done
        self.offered += done
        return Draft(tuple(token for token, _, _ in nodes), None, tuple(parent for _, parent, _ in nodes))

    def _wrong_node(self, nodes: Sequence[tuple[int, int, int | None]], rest: Sequence[int]) -> tuple[int, int, None]:
        parent = self._random.randint(-1, len(nodes) - 1)
        depth = 0 if parent == -1 else nodes[parent][2]
        banned = rest[depth] if depth is not None and depth < len(rest) else None
        token = self._random.choice([one for one in range(self._vocabulary) if one != banned])
        return token, parent, None
