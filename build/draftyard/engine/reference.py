"""The engine: sequences join and leave between steps, speculate, and share one forward pass a step."""

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import torch

from draftyard.engine.acceptance import Draft, Path, verify
from draftyard.engine.configuration import EngineLimits
from draftyard.engine.decoder import Decoder
from draftyard.engine.proposers import NoProposer, Proposer
from draftyard.engine.request_checks import check_request
from draftyard.engine.runs import Run
from draftyard.engine.sampling import adjusted
from draftyard.engine.schedule import draft_rooms, prompt_chunks
from draftyard.engine.sequence import Sequence
from draftyard.engine.slot_pool import SlotPool
from draftyard.nouns.errors import Failure
from draftyard.nouns.generation import FinishReason, GenerationEvent, GenerationRequest
from draftyard.nouns.speculation_schedule import NO_SCHEDULE, SpeculationSchedule


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What the engine holds now; `kv_tokens_used` is what running sequences have reserved.

    `prefix_tokens_reused` counts tokens of prompts that were not computed, because they lay in the cache already.
    """

    active: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_total: int
    steps_total: int
    prefix_tokens_reused: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the pass computed for one sequence: logits of the wanted tokens, features of all its new ones."""

    logits: torch.Tensor
    features: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Planned:
    """A sequence and its part of the coming pass."""

    sequence: Sequence
    draft: Draft
    run: Run

    @property
    def completes(self) -> bool:
        """True when the pass gives the sequence tokens (a prefill's last chunk, or a verification)."""
        return self.run.logits_from < len(self.run.token_ids)


class ReferenceEngine:
    """Not thread-safe: one thread submits, cancels and steps (see `EngineLoop`).

    `schedule` limits drafts by the number of running sequences, beside what each request asks for.
    """

    def __init__(
        self,
        decoder: Decoder,
        proposer: Proposer,
        limits: EngineLimits,
        schedule: SpeculationSchedule = NO_SCHEDULE,
    ) -> None:
        self.limits = limits
        self._schedule = schedule
        self._decoder = decoder
        self._proposer = proposer
        self._waiting: deque[GenerationRequest] = deque()
        self._running: dict[str, Sequence] = {}
        self._slots = SlotPool(limits.max_batch_size)
        self._reserved_tokens = 0
        self._cancelled: list[str] = []
        self._steps_total = 0
        self._prefix_tokens_reused = 0

    @property
    def has_work(self) -> bool:
        """True while a request waits, runs or has a cancellation to report."""
        return bool(self._waiting or self._running or self._cancelled)

    def status(self) -> EngineStatus:
        """Counts for metrics and tests."""
        return EngineStatus(
            len(self._running),
            len(self._waiting),
            self._reserved_tokens,
            self.limits.kv_cache_tokens,
            self._steps_total,
            self._prefix_tokens_reused,
        )

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; Failure when it cannot be served or its id is in use."""
        if request.request_id in self._running or any(one.request_id == request.request_id for one in self._waiting):
            raise Failure(f"request id {request.request_id!r} is in use", "give each request its own id")
        check_request(request, self.limits, self._decoder.shape.vocabulary)
        if request.draft_ids and not isinstance(self._proposer, NoProposer):
            raise Failure("this engine drafts by itself", "send drafts to an engine that was built for external ones")
        self._waiting.append(request)

    def cancel(self, request_id: str) -> None:
        """End a request with the next step; an unknown id is ignored (it may just have ended)."""
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                self._cancelled.append(request_id)
                return
        sequence = self._running.get(request_id)
        if sequence is not None:
            if sequence.prefilling:
                # Nobody has seen logits of these positions yet: they may be no numbers.
                self._discard(sequence, sequence.cached)
            self._release(sequence)
            self._cancelled.append(request_id)

    def end_all(self, message: str) -> tuple[GenerationEvent, ...]:
        """End everything that waits, runs or was cancelled: the last resort when `step` itself is broken."""
        names = [*self._cancelled, *(one.request_id for one in self._waiting), *self._running]
        for sequence in list(self._running.values()):
            self._release(sequence)
        self._waiting.clear()
        self._cancelled.clear()
        return tuple(GenerationEvent(name, (), FinishReason.ERROR, None, message) for name in names)

    @torch.inference_mode()
    def step(self) -> tuple[GenerationEvent, ...]:
        """Admit, draft, run one pass, accept; returns one event for each sequence that got tokens or ended.

        A fault in the pass ends the running sequences with an error, a fault in one sequence's verification that one;
        waiting requests and later passes are not touched.
        """
        events = [GenerationEvent(name, (), FinishReason.CANCELLED) for name in self._cancelled]
        self._cancelled.clear()
        self._admit()
        try:
            planned = self._plan()
            self._steps_total += 1 if planned else 0
            logits, features = self._forward([one.run for one in planned])
            numbers = logits.amax(dim=-1).isfinite().tolist()
        except Exception as error:  # whatever broke, every client of this pass has to hear of it
            return (*events, *(self._fail(one, error) for one in list(self._running.values())))
        begin, fed = 0, 0
        for one in planned:
            count = len(one.run.token_ids)
            end = begin + count - one.run.logits_from
            outcome = _Outcome(logits[begin:end], features[fed : fed + count])
            events.extend(self._advance_safely(one, outcome, all(numbers[begin:end])))
            begin, fed = end, fed + count
        return tuple(events)

    @torch.inference_mode()
    def replay(self, request: GenerationRequest, output: Many[int]) -> torch.Tensor:
        """Logits float32 [len(output), vocabulary] from which each token of an output had to be chosen.

        They are computed anew in a free slot, as a prompt is read, and adjusted by the request's penalties and bans:
        by them it is judged whether a greedy text parted from another at a tie. Nothing else of the engine changes.
        Failure when all slots are taken, the output is empty or the text is too long.
        """
        check_request(replace(request, max_tokens=len(output)), self.limits, self._decoder.shape.vocabulary)
        if not self._slots:
            raise Failure("all slots are taken", "replay when a sequence has ended")
        slot = self._slots.take_blank()
        tokens, given, rows = [*request.input_ids, *output][:-1], len(request.input_ids), []
        for start in range(0, len(tokens), self.limits.max_num_tokens):
            piece = tuple(tokens[start : start + self.limits.max_num_tokens])
            wanted = min(max(given - 1 - start, 0), len(piece))
            rows.append(self._decoder.forward([Run(slot, start, piece, wanted)]))
        self._slots.give_back(slot, ())
        logits = torch.cat(rows)
        return torch.stack([adjusted(row, request, tokens[: given + place]) for place, row in enumerate(logits)])

    def _forward(self, runs: Many[Run]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and features where the speculator wants them."""
        if not runs:
            return torch.empty(0, 1), torch.empty(0, 0)
        if self._proposer.taps:
            return self._decoder.forward_with_features(runs, self._proposer.taps)
        return self._decoder.forward(runs), torch.empty(0, 0)

    def _advance_safely(self, one: _Planned, outcome: _Outcome, numbers: bool) -> list[GenerationEvent]:
        try:
            if not numbers:
                raise ArithmeticError("the logits are no finite numbers: the weights do not fit their type")
            return self._advance(one, outcome)
        except Exception as error:  # one sequence's fault is no other's
            return [self._fail(one.sequence, error)]

    def _fail(self, sequence: Sequence, error: Exception) -> GenerationEvent:
        self._discard(sequence, self._decoder.cache.positions)
        self._release(sequence)
        text = f"the engine failed: {type(error).__name__}: {error}"
        return GenerationEvent(sequence.request.request_id, (), FinishReason.ERROR, sequence.statistics(), text)

    def _admit(self) -> None:
        """First come, first served; a request enters only when its whole length fits, so none is ever evicted."""
        while self._waiting and self._slots:
            request = self._waiting[0]
            draft_room = self.limits.max_draft_len
            needed = len(request.input_ids) + request.max_tokens + draft_room
            if self._reserved_tokens + needed > self.limits.kv_cache_tokens:
                return
            self._waiting.popleft()
            self._reserved_tokens += needed
            asked = request.max_draft_len
            draft_len = draft_room if asked is None else min(asked, draft_room)
            slot, reused = self._place(request, draft_len)
            self._running[request.request_id] = Sequence(
                request=request,
                slot=slot,
                reserved_tokens=needed,
                max_draft_len=draft_len,
                generator=torch.Generator().manual_seed(request.sampling.seed % 2**63),
                tokens=list(request.input_ids),
                cached=reused,
            )

    def _place(self, request: GenerationRequest, draft_len: int) -> tuple[int, int]:
        """A slot, and how many tokens of the prompt lie in it; a speculator that reads features has to see them all."""
        if self._proposer.taps and draft_len > 0:
            return self._slots.take_blank(), 0
        found = self._slots.take(request.input_ids, self._running.values())
        if found.source != found.slot:
            self._decoder.cache.copy(found.source, found.slot, found.reused)
        self._prefix_tokens_reused += found.reused
        return found.slot, found.reused

    def _plan(self) -> list[_Planned]:
        """Decodes first, then chunks of prompts in order of arrival, within `max_num_tokens`.

        Beside sequences that decode, prompts are read in chunks of `prefill_chunk_tokens`: so long may a step take.
        """
        decoding = [one for one in self._running.values() if one.unread == 0]
        prefilling = [one for one in self._running.values() if one.unread > 0]
        unread = [one.unread for one in prefilling]
        spare = self.limits.max_num_tokens - len(decoding)
        chunk = self.limits.prefill_chunk_tokens if decoding else self.limits.max_num_tokens
        planned = []
        for sequence, draft in zip(decoding, self._drafts(decoding, sum(unread), spare, chunk), strict=True):
            spare -= len(draft.token_ids)
            planned.append(_Planned(sequence, draft, _verification(sequence, draft)))
        for sequence, count in zip(prefilling, prompt_chunks(unread, spare, chunk), strict=True):
            if count > 0:
                planned.append(_Planned(sequence, Draft(), _chunk(sequence, count)))
        return planned

    def _drafts(self, decoding: Many[Sequence], unread: int, spare: int, chunk: int) -> list[Draft]:
        limit = self._schedule.limit(len(self._running))
        wishes = [one.room if limit is None else min(one.room, limit) for one in decoding]
        most = draft_rooms(wishes, unread, spare, chunk)
        drafts = self._proposer.propose(decoding, most)
        drafts = [Draft(one.given) if one.given else draft for one, draft in zip(decoding, drafts, strict=True)]
        return [
            draft.trimmed(room, sequence.depth_room)
            for sequence, draft, room in zip(decoding, drafts, most, strict=True)
        ]

    def _advance(self, one: _Planned, outcome: _Outcome) -> list[GenerationEvent]:
        """Take what the pass gave a sequence: nothing for a chunk in the middle of a prompt."""
        sequence = one.sequence
        if not one.completes:
            sequence.cached = one.run.end
            self._keep(one, (), outcome.features)
            return []
        first = sequence.prefilling
        verdict = verify(sequence.request, sequence.tokens, one.draft, outcome.logits, sequence.generator)
        emitted = sequence.emit(verdict.token_ids)
        sequence.cached = len(sequence.tokens) - 1
        if not first or sequence.request.draft_ids:
            sequence.count(one.draft, len(verdict.path), len(emitted))
        if sequence.request.draft_ids:
            sequence.finish_reason = sequence.finish_reason or FinishReason.LENGTH
        if sequence.finish_reason is None:
            self._keep(one, verdict.path, outcome.features)
        elif one.draft.parents is not None:
            sequence.cached = one.run.start + 1  # behind it lies a tree
        self._proposer.settle(sequence, one.draft, verdict.path)
        if sequence.finish_reason is not None:
            self._release(sequence)
        event = GenerationEvent(sequence.request.request_id, emitted, sequence.finish_reason, sequence.statistics())
        return [event]

    def _keep(self, one: _Planned, path: Path, features: torch.Tensor) -> None:
        """Leave a chain in the cache and hand its features on: the run's certain tokens and the accepted path."""
        certain = len(one.run.token_ids) - len(one.draft.token_ids)
        rows = [*range(certain), *(certain + node for node in path)]
        self._decoder.cache.keep(one.sequence.slot, one.run.start, rows)
        if self._proposer.taps:
            kept = features if len(rows) == len(features) else features[torch.tensor(rows, device=features.device)]
            self._proposer.absorb(one.sequence, one.run.start, kept)

    def _discard(self, sequence: Sequence, count: int) -> None:
        """Nothing of the sequence may be read again; it wrote to the first `count` positions at most."""
        self._decoder.cache.clear(sequence.slot, count)
        sequence.cached = 0

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence.request.request_id]
        self._slots.give_back(sequence.slot, sequence.tokens[: sequence.cached])
        self._reserved_tokens -= sequence.reserved_tokens
        self._proposer.forget(sequence)


def _chunk(sequence: Sequence, count: int) -> Run:
    """The run that reads the next `count` tokens of a prompt; only its very last token's logits are wanted."""
    end = sequence.cached + count
    chunk = tuple(sequence.tokens[sequence.cached : end])
    return Run(sequence.slot, sequence.cached, chunk, count - 1 if end == len(sequence.tokens) else count)


def _verification(sequence: Sequence, draft: Draft) -> Run:
    """The run that scores a draft: the sequence's last token is the root, node i of the draft the token i + 1."""
    parents = None if draft.parents is None else (-1, *(parent + 1 for parent in draft.parents))
    return Run(sequence.slot, sequence.cached, (sequence.tokens[-1], *draft.token_ids), 0, parents)
