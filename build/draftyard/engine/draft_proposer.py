"""Proposes with a smaller decoder that has its own cache: catches up, then draws a chain for all sequences at once."""

from collections.abc import Sequence as Many

from torch import Tensor
from torch.nn import functional

from draftyard.engine.acceptance import Draft, Path
from draftyard.engine.decoder import Decoder
from draftyard.engine.runs import Run
from draftyard.engine.sampling import adjusted, distribution, draw, needs_history
from draftyard.engine.sequence import Sequence


class _Chain:
    """A draft in the making; the target has `vocabulary` tokens."""

    def __init__(self, sequence: Sequence, wanted: int, vocabulary: int) -> None:
        self.sequence = sequence
        self.wanted = wanted
        self._vocabulary = vocabulary
        self.token_ids: list[int] = []
        self.probabilities: list[Tensor] = []

    def extend(self, logits: Tensor) -> None:
        """Choose the next token from the draft's logits [vocabulary], as the target will choose from its own."""
        request, logits = self.sequence.request, self._fitted(logits)
        if needs_history(request):
            logits = adjusted(logits, request, [*self.sequence.tokens, *self.token_ids])
        if request.sampling.greedy:
            self.token_ids.append(int(logits.argmax()))
            return
        probabilities = distribution(logits, request.sampling)
        self.token_ids.append(draw(probabilities, self.sequence.generator))
        self.probabilities.append(probabilities)

    def _fitted(self, logits: Tensor) -> Tensor:
        """Rows beyond the other model's vocabulary are padding of one of the two embeddings: never proposed."""
        missing = self._vocabulary - logits.shape[0]
        if missing <= 0:
            return logits[: self._vocabulary]
        return functional.pad(logits, (0, missing), value=float("-inf"))

    def draft(self) -> Draft:
        """The finished draft."""
        return Draft(tuple(self.token_ids), tuple(self.probabilities) if self.probabilities else None)


class DraftProposer:
    """`cached` counts, per request, the leading tokens whose keys and values the draft's cache holds."""

    taps: tuple[int, ...] = ()

    def __init__(self, decoder: Decoder, max_num_tokens: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._decoder = decoder
        self._max_num_tokens = max_num_tokens
        self._cached: dict[str, int] = {}

    def propose(self, sequences: Many[Sequence], most: Many[int]) -> list[Draft]:
        """Chains of `most[i]` tokens; the sequences step together. A token unknown to the draft ends its drafting."""
        chains = [
            _Chain(one, min(wanted, one.depth_room) if self._knows(one) else 0, self._vocabulary)
            for one, wanted in zip(sequences, most, strict=True)
        ]
        active = [chain for chain in chains if chain.wanted > 0]
        if active:
            self._catch_up(active)
        while active := [chain for chain in active if len(chain.token_ids) < chain.wanted]:
            runs = [
                Run(
                    chain.sequence.slot,
                    len(chain.sequence.tokens) + len(chain.token_ids) - 1,
                    (chain.token_ids[-1],),
                    0,
                )
                for chain in active
            ]
            for chain, logits in zip(active, self._decoder.forward(runs), strict=True):
                chain.extend(logits)
        return [chain.draft() for chain in chains]

    def absorb(self, sequence: Sequence, first_position: int, features: Tensor) -> None:
        """Asks for no features."""

    def settle(self, sequence: Sequence, draft: Draft, path: Path) -> None:
        """Keys and values of refused tokens are overwritten; the last drafted token was never fed to the draft."""
        name, drafted = sequence.request.request_id, len(draft.token_ids)
        if drafted:
            kept = self._cached[name] + min(len(path), drafted - 1)
            self._cached[name] = min(kept, len(sequence.tokens) - 1)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of the sequence."""
        self._cached.pop(sequence.request.request_id, None)

    def _knows(self, sequence: Sequence) -> bool:
        unseen = sequence.tokens[self._cached.get(sequence.request.request_id, 0) :]
        return max(unseen) < self._decoder.shape.vocabulary

    def _catch_up(self, chains: Many[_Chain]) -> None:
        """Feed what the draft has not seen, in passes of at most `max_num_tokens`, and choose each first token."""
        waiting = list(chains)
        while waiting:
            room, runs, fed = self._max_num_tokens, [], []
            for chain in waiting:
                if room == 0:
                    break
                run = self._unseen(chain.sequence, room)
                room -= len(run.token_ids)
                runs.append(run)
                fed.append(chain)
            rows = iter(self._decoder.forward(runs))
            for chain, run in zip(fed, runs, strict=True):
                self._cached[chain.sequence.request.request_id] = run.end
                if run.end == len(chain.sequence.tokens):
                    chain.extend(next(rows))
            waiting = [chain for chain in waiting if not chain.token_ids]

    def _unseen(self, sequence: Sequence, room: int) -> Run:
        start = self._cached.get(sequence.request.request_id, 0)
        token_ids = tuple(sequence.tokens[start : start + room])
        last = start + len(token_ids) == len(sequence.tokens)
        return Run(sequence.slot, start, token_ids, len(token_ids) - 1 if last else len(token_ids))
