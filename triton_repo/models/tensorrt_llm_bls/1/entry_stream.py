"""One request of the entry from its arrival to its last response."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from bad_input import BadInput
from detokeniser import IncrementalDetokeniser
from engine_calls import EngineStep, Prompt, TokenSource, preprocess
from entry_request import EntryRequest
from generation import STOP_WORDS, Delta, EndedEarly, EndRules, Generation
from seam import Array, ModelError, Sender, error_response, failed_response, log_error, response, send, texts
from stop_words import StopWordMatcher

LOST_ERROR = "the engine failed in mid-stream after {count} of {total} tokens; its log has the reason"


@dataclass(frozen=True)
class EntryServices:
    """What every stream of an instance uses."""

    source: TokenSource
    new_detokeniser: Callable[[], IncrementalDetokeniser]
    further_end_ids: frozenset[int]
    silent_end: bool
    stall_timeout_s: float
    ended: Callable[[str, Mapping[str, int], Sequence[int]], None]


@dataclass
class Progress:
    """What a stream has seen so far."""

    prompt: Prompt | None = None
    generation: Generation | None = None
    drafted: int | None = None
    accepted: int | None = None
    contradictory: bool = False
    engine_tokens: int = 0
    runs: list[int] = field(default_factory=list)
    perf: Mapping[str, Array] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def count(self, step: EngineStep, last: bool) -> None:
        """Take over the engine's counts, which are those of all steps so far, and the accepted run of this step.

        Each step brings one token that was not drafted, except that the last one may end within its draft. An engine
        that counts more than that counts what it refused: its counts are worth nothing.
        """
        if not step.token_ids:
            return
        before = self.accepted or 0
        self.drafted = self.drafted if step.drafted is None else step.drafted
        self.accepted = self.accepted if step.accepted is None else step.accepted
        gained = len(step.token_ids) - 1 if step.accepted is None else step.accepted - before
        self.runs.append(max(0, min(gained, len(step.token_ids))))
        self.engine_tokens += len(step.token_ids)
        drafted, accepted = self.drafted or 0, self.accepted or 0
        impossible = accepted > drafted or (not last and accepted > self.engine_tokens - len(self.runs))
        self.contradictory = self.contradictory or impossible


class EntryStream:
    """Runs in a thread of its own; a watcher may interrupt it from another. Whoever answers last, answers once."""

    def __init__(self, services: EntryServices, request: EntryRequest, sender: Sender, wanted: tuple[str, ...]) -> None:
        self._services = services
        self._request = request
        self._sender = sender
        self._wanted = wanted
        self._lock = threading.Lock()
        self._answered = False
        self._progress = Progress()
        self.inner_id = uuid.uuid4().hex
        self.deadline = time.monotonic() + request.timeout_s
        self._last_step = self.deadline
        self.started = False
        self.stopping = False

    def run(self) -> None:
        """Generate and answer; returns when the engine holds nothing of this request any more."""
        try:
            self._generate()
        except BadInput as error:
            self._refuse(str(error))
        except ModelError as error:
            self._fail(str(error), "refused" if self._progress.generation is None else "error")
        except EndedEarly as error:
            self._fail(str(error), "error")
        except Exception as error:  # a fault of ours ends this request, not the server
            log_error(f"tensorrt_llm_bls: {type(error).__name__}: {error}")
            self._fail(f"the entry failed: {type(error).__name__}: {error}", "error")

    def watch(self, now: float) -> None:
        """Called every so often from the watcher: ends the request when its client or its time has gone."""
        with self._lock:
            if self._answered:
                return
            if self._sender.is_cancelled():
                generation = self._progress.generation
                self._finish(generation.cancel() if generation else Delta("", (), "cancelled"))
                self.stopping = True
            elif now > self.deadline:
                self._end(failed_response(f"request timed out after {self._request.timeout_s:g} s"), "timeout")
                self.stopping = True
            elif now - self._last_step > self._services.stall_timeout_s:
                self._end(failed_response(f"the engine sent nothing for {self._services.stall_timeout_s:g} s"), "error")
                self.stopping = True

    def abort(self, message: str) -> None:
        """End the request from outside, with an error."""
        self._fail(message, "error")
        self.stopping = True

    def _generate(self) -> None:
        prompt = preprocess(self._request)
        request, services = self._request, self._services
        further = services.further_end_ids if request.own_end_id is None else frozenset()
        rules = EndRules(
            max_tokens=request.max_tokens,
            end_ids=further | ({prompt.end_id} if prompt.end_id >= 0 else frozenset()),
            stop_sequences=prompt.stop_sequences,
            silent_end=services.silent_end,
            min_tokens=request.min_tokens,
        )
        generation = Generation(rules, services.new_detokeniser(), StopWordMatcher(request.stop_words))
        with self._lock:
            if self._answered:
                return
            self._progress.prompt, self._progress.generation = prompt, generation
            if not request.exclude_input:
                self._progress.texts.append(request.text)
        self.started = True
        self._follow(prompt, generation)
        with self._lock:
            if not self._answered:
                self._finish(generation.end())

    def _follow(self, prompt: Prompt, generation: Generation) -> None:
        """Read the engine's stream to its end, whatever happens on the way: a stream left unread never ends."""
        source, told = self._services.source, False
        for step in source.steps(prompt, self._request, self.inner_id, lambda: self._answered):
            try:
                self._take(step, generation)
            except Exception as error:  # a fault of ours ends this request, not the server
                log_error(f"tensorrt_llm_bls: {type(error).__name__}: {error}")
                self.abort(f"the entry failed: {type(error).__name__}: {error}")
            if self.stopping and not told:
                told = True
                source.stop(self.inner_id)

    def _take(self, step: EngineStep, generation: Generation) -> None:
        """One engine step; after the last response the rest of the engine's stream is only drained."""
        with self._lock:
            if self._answered:
                self.stopping = self.stopping or not step.bare  # an engine that goes on after its end is told to stop
                return
            if step.bare:
                lost = LOST_ERROR.format(count=generation.token_count, total=self._request.max_tokens)
                self._end(failed_response(lost), "error")
                self.stopping = True
                return
            self._last_step = time.monotonic()
            progress = self._progress
            progress.perf = step.perf or progress.perf
            delta = generation.add(step.token_ids)
            progress.count(step, delta.finish != "")
            if delta.finish:
                self._finish(delta)
                self.stopping = delta.finish == STOP_WORDS
                return
            progress.texts.append(delta.text)
            progress.token_ids.extend(delta.token_ids)
            if self._request.stream and step.token_ids:
                send(self._sender, response(self._arrays(), self._wanted), final=False)
                progress.texts.clear()
                progress.token_ids.clear()

    def _finish(self, delta: Delta) -> None:
        """The last data response; it carries the final flag. The lock is held."""
        progress = self._progress
        progress.texts.append(delta.text)
        progress.token_ids.extend(delta.token_ids)
        arrays = self._arrays()
        arrays["finish_reason"] = texts([delta.finish]).reshape(1, 1)
        arrays.update(self._statistics())
        self._end(response(arrays, self._wanted), delta.finish)

    def _arrays(self) -> dict[str, Array]:
        progress = self._progress
        arrays: dict[str, Array] = {
            "text_output": texts(["".join(progress.texts)]).reshape(1, 1),
            "output_token_ids": np.array([progress.token_ids], dtype=np.int32),
        }
        if self._request.count_input and progress.prompt is not None:
            arrays["num_input_tokens"] = np.array([[progress.prompt.tokens]], dtype=np.int32)
        if self._request.count_output and progress.generation is not None:
            arrays["num_output_tokens"] = np.array([[progress.generation.token_count]], dtype=np.int32)
        return arrays

    def _statistics(self) -> dict[str, Array]:
        """Counts of the whole sequence; left out when the engine gave none, or some that cannot be."""
        drafted, accepted = self._progress.drafted, self._progress.accepted
        arrays = dict(self._progress.perf)
        if self._progress.contradictory:
            log_error(f"tensorrt_llm_bls: the engine counts {accepted} accepted tokens, which its stream denies")
        elif drafted is not None and accepted is not None:
            arrays["total_draft_tokens"] = np.array([[drafted]], dtype=np.int32)
            arrays["total_accepted_draft_tokens"] = np.array([[accepted]], dtype=np.int32)
            rate = accepted / drafted if drafted else 0.0
            arrays["acceptance_rate"] = np.array([[rate]], dtype=np.float32)
        return arrays

    def _refuse(self, message: str) -> None:
        with self._lock:
            if not self._answered:
                self._end(error_response(message), "refused")

    def _fail(self, message: str, outcome: str) -> None:
        with self._lock:
            if not self._answered:
                self._end(failed_response(message), outcome)

    def _end(self, answer: object, outcome: str) -> None:
        """Answer for the last time. The lock is held."""
        self._answered = True
        progress = self._progress
        generation = progress.generation
        counts = {
            "prompt": progress.prompt.tokens if progress.prompt else 0,
            "output": generation.token_count if generation else 0,
            "steps": max(generation.steps - 1, 0) if generation else 0,
            "drafted": 0 if progress.contradictory else progress.drafted or 0,
            "accepted": 0 if progress.contradictory else progress.accepted or 0,
            "contradictory": int(progress.contradictory),
        }
        runs = () if progress.contradictory else progress.runs[1:]
        self._services.ended(outcome, counts, runs)
        send(self._sender, answer, final=True)
