"""One request while it is decoded: its tokens, its place in the cache, its counts."""

from dataclasses import dataclass, field

import torch

from draftyard.engine.acceptance import Draft
from draftyard.nouns.generation import FinishReason, GenerationRequest, SpeculationStatistics


@dataclass
class Sequence:
    """`tokens` is prompt and output; the first `cached` of them have keys and values in `slot`."""

    request: GenerationRequest
    slot: int
    reserved_tokens: int
    max_draft_len: int
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    finish_reason: FinishReason | None = None
    steps: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    accepted_before_cut: int = 0

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.request.input_ids)

    @property
    def prefilling(self) -> bool:
        """True until the first output token."""
        return self.generated == 0

    @property
    def given(self) -> tuple[int, ...]:
        """A draft that came with the request and is not verified yet."""
        return self.request.draft_ids if self.prefilling else ()

    @property
    def unread(self) -> int:
        """Tokens of the prompt to be read before the sequence decodes; a given draft is verified with the last one."""
        return len(self.tokens) - self.cached - (1 if self.given else 0) if self.prefilling else 0

    @property
    def depth_room(self) -> int:
        """Tokens that a draft can still add: one output token always comes from the target itself."""
        return self.request.max_tokens - self.generated - 1

    @property
    def room(self) -> int:
        """Nodes of a draft that are worth their place in a pass."""
        return self.max_draft_len if self.depth_room > 0 else 0

    def emit(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Append tokens up to the first that ends the sequence; what follows an end is cut. Returns what was kept."""
        kept: list[int] = []
        for token in token_ids:
            self.tokens.append(token)
            kept.append(token)
            self.finish_reason = self._finish(token)
            if self.finish_reason is not None:
                break
        return tuple(kept)

    def count(self, draft: Draft, accepted: int, emitted: int) -> None:
        """Count one verification step by depth; draft positions behind the last emitted token count for nothing.

        A tree counts once for each depth at which it had a node, an accepted path of `accepted` nodes once for each of
        its own. `accepted_before_cut` keeps what was accepted whether or not the sequence ended within it.
        """
        self.steps += 1
        self.accepted_before_cut += accepted
        depth = max(draft.depths(), default=-1) + 1
        counted = depth if self.finish_reason is None else min(depth, emitted)
        for index in range(counted):
            if index == len(self.drafted):
                self.drafted.append(0)
                self.accepted.append(0)
            self.drafted[index] += 1
            self.accepted[index] += 1 if index < min(accepted, emitted) else 0

    def statistics(self) -> SpeculationStatistics:
        """Counts so far."""
        return SpeculationStatistics(
            self.steps,
            sum(self.drafted),
            sum(self.accepted),
            tuple(self.drafted),
            tuple(self.accepted),
            self.accepted_before_cut,
        )

    def _finish(self, token: int) -> FinishReason | None:
        if self.generated >= self.request.sampling.min_tokens:
            if token in self.request.end_ids:
                return FinishReason.END_ID
            for stop in self.request.stop_sequences:
                if len(stop) <= self.generated and tuple(self.tokens[-len(stop) :]) == stop:
                    return FinishReason.STOP_WORDS
        return FinishReason.LENGTH if self.generated >= self.request.max_tokens else None
