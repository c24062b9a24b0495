"""One thread that steps an engine while there is work; others submit and cancel through it."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from draftyard.engine.reference import EngineStatus, ReferenceEngine
from draftyard.nouns.errors import Failure
from draftyard.nouns.generation import FinishReason, GenerationEvent, GenerationRequest

_LOG = logging.getLogger(__name__)


class EngineLoop:
    """`deliver` is called on the loop's thread with every event and must not block; if it raises, its request ends."""

    def __init__(self, engine: ReferenceEngine, deliver: Callable[[GenerationEvent], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self._inbox: deque[GenerationRequest | str] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def submit(self, request: GenerationRequest) -> None:
        """Hand a request over; one that cannot be served comes back as an event with an error."""
        self._put(request)

    def cancel(self, request_id: str) -> None:
        """End a request with the next step."""
        self._put(request_id)

    def status(self) -> EngineStatus:
        """Counts, as of some moment during the last step."""
        return self._engine.status()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread after the step it is in; what still runs gets no further events."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _put(self, item: GenerationRequest | str) -> None:
        with self._wake:
            self._inbox.append(item)
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._stopping or self._inbox or self._engine.has_work):
                    self._wake.wait()
                if self._stopping:
                    return
                items = list(self._inbox)
                self._inbox.clear()
            for item in items:
                self._take(item)
            self._step()

    def _take(self, item: GenerationRequest | str) -> None:
        if isinstance(item, str):
            self._engine.cancel(item)
            return
        try:
            self._engine.submit(item)
        except Failure as failure:
            self._fail(item.request_id, f"{failure.message} ({failure.hint})")

    def _step(self) -> None:
        try:
            events = self._engine.step()
        except Exception as error:  # one bad step must not leave clients waiting for ever
            events = self._engine.end_all(f"the engine failed: {type(error).__name__}: {error}")
        for event in events:
            self._hand_over(event)

    def _fail(self, request_id: str, error: str) -> None:
        self._hand_over(GenerationEvent(request_id, (), FinishReason.ERROR, None, error))

    def _hand_over(self, event: GenerationEvent) -> None:
        """Deliver; a receiver that raises loses its own request, not the thread that serves all the others."""
        try:
            self._deliver(event)
        except Exception:
            _LOG.exception("the receiver of %s failed; its request is cancelled", event.request_id)
            if event.finish_reason is None:
                self._engine.cancel(event.request_id)
