"""The requests that the engine holds, and the responses that its events become."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from engine_request import EngineCall
from seam import Sender, failed_response, log_error, response, send, send_end

from draftyard.nouns.generation import FinishReason, GenerationEvent, SpeculationStatistics

Array: TypeAlias = "npt.NDArray[np.generic]"


@dataclass
class HeldRequest:
    """One request and what it has been given."""

    client_id: str
    call: EngineCall
    sender: Sender
    wanted: tuple[str, ...]
    arrival_ns: int
    first_token_ns: int = 0
    output_count: int = 0
    collected: list[int] = field(default_factory=list)
    statistics: SpeculationStatistics = field(default_factory=SpeculationStatistics)
    began: bool = False
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, event: GenerationEvent) -> None:
        """Send what an event means for the client; the engine's thread calls this."""
        with self.lock:
            if not self.over:
                self.over = event.finish_reason is not None or event.error != ""
                self._send(event)

    def is_cancelled(self) -> bool:
        """True when the client has gone; the server must not be asked about a stream that has ended."""
        with self.lock:
            return not self.over and self.sender.is_cancelled()

    def _send(self, event: GenerationEvent) -> None:
        if event.error or event.finish_reason is FinishReason.ERROR:
            self._fail(event.error or "the engine failed")
            return
        if event.finish_reason is FinishReason.CANCELLED:
            send_end(self.sender)
            return
        final = event.finish_reason is not None
        self.first_token_ns = self.first_token_ns or time.monotonic_ns()
        self.output_count += len(event.token_ids)
        self.statistics = event.statistics or self.statistics
        self.collected.extend(event.token_ids)
        if self.call.streaming or final:
            self.began = True
            send(self.sender, response(self._arrays(final), self.wanted), final)
            self.collected.clear()

    def _fail(self, message: str) -> None:
        """An error with the final flag is lost in Triton 24.10 once data was sent to a caller in the server."""
        send(self.sender, failed_response(message), final=not self.began)
        if self.began:
            send_end(self.sender)

    def _arrays(self, final: bool) -> Mapping[str, Array]:
        ids = self.collected
        if self.call.include_input and not self.call.streaming:
            ids = [*self.call.generation.input_ids, *ids]
        arrays: dict[str, Array] = {
            "output_ids": np.array([[ids]], dtype=np.int32).reshape(1, 1, -1),
            "sequence_length": np.array([[len(ids)]], dtype=np.int32),
            "num_input_tokens": np.array([[len(self.call.generation.input_ids)]], dtype=np.int32),
            "num_output_tokens": np.array([[self.output_count]], dtype=np.int32),
        }
        if self.call.perf_metrics:
            counts = self.statistics
            rate = counts.accepted / counts.drafted if counts.drafted else 0.0
            arrays["total_draft_tokens"] = np.array([[counts.drafted]], dtype=np.int32)
            arrays["total_accepted_draft_tokens"] = np.array([[counts.accepted]], dtype=np.int32)
            arrays["acceptance_rate"] = np.array([[rate]], dtype=np.float32)
        if self.call.perf_metrics and final:
            arrays["arrival_time_ns"] = np.array([[self.arrival_ns]], dtype=np.int64)
            arrays["first_token_time_ns"] = np.array([[self.first_token_ns]], dtype=np.int64)
            arrays["last_token_time_ns"] = np.array([[time.monotonic_ns()]], dtype=np.int64)
        return arrays


class HeldRequests:
    """All requests by the engine's id of them; several may share a client's id."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._by_id: dict[str, HeldRequest] = {}
        self._lock = threading.Lock()

    def add(self, engine_id: str, held: HeldRequest) -> bool:
        """Keep a request; False when as many are held as may run and wait."""
        with self._lock:
            if self._limit is not None and len(self._by_id) >= self._limit:
                return False
            self._by_id[engine_id] = held
            return True

    def drop(self, engine_id: str) -> HeldRequest | None:
        """Forget a request; None when it is not held."""
        with self._lock:
            return self._by_id.pop(engine_id, None)

    def deliver(self, event: GenerationEvent) -> None:
        """An event of the engine to its request; the last one ends it."""
        with self._lock:
            held = self._by_id.get(event.request_id)
        if held is None:
            return
        if event.finish_reason is not None or event.error:
            self.drop(event.request_id)
        try:
            held.take(event)
        except Exception as error:  # a client that cannot be answered must not stop the engine's thread
            log_error(f"tensorrt_llm: {event.request_id}: {type(error).__name__}: {error}")

    def of_client(self, client_id: str) -> tuple[str, ...]:
        """The engine's ids of a client's id."""
        with self._lock:
            return tuple(key for key, held in self._by_id.items() if held.client_id == client_id)

    def cancelled(self) -> tuple[str, ...]:
        """The engine's ids whose clients have gone."""
        with self._lock:
            copy = tuple(self._by_id.items())
        return tuple(key for key, held in copy if held.is_cancelled())

    def end_all(self, message: str) -> None:
        """End every request with an error."""
        with self._lock:
            engine_ids = tuple(self._by_id)
        for engine_id in engine_ids:
            self.deliver(GenerationEvent(engine_id, (), FinishReason.ERROR, None, message))
