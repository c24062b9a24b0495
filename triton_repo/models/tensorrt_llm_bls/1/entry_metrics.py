"""What the entry counts for Prometheus."""

import threading
from typing import Protocol, cast

import triton_python_backend_utils as pb_utils

OUTCOMES = ("length", "end_id", "stop_words", "cancelled", "timeout", "refused", "error")


class _Metric(Protocol):
    def increment(self, value: float) -> None: ...


class _Family(Protocol):
    def Metric(self, labels: dict[str, str]) -> _Metric: ...


def _family(name: str, description: str, gauge: bool = False) -> _Family:
    kind = pb_utils.MetricFamily.GAUGE if gauge else pb_utils.MetricFamily.COUNTER
    return cast("_Family", pb_utils.MetricFamily(name=name, description=description, kind=kind))


class EntryMetrics:
    """Counters of one instance; each update is a round trip to the server, so they come once a request."""

    def __init__(self) -> None:
        requests = _family("draftyard_requests_total", "Requests by how they ended")
        counters = {
            "prompt": ("draftyard_prompt_tokens_total", "Prompt tokens of requests that were started"),
            "output": ("draftyard_generation_tokens_total", "Output tokens, cut where the text was cut"),
            "steps": ("draftyard_verification_steps_total", "Engine steps after the prefill"),
            "drafted": ("draftyard_spec_decode_num_draft_tokens_total", "Draft tokens that were verified"),
            "accepted": ("draftyard_spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted"),
        }
        flying = _family("draftyard_requests_in_flight", "Requests whose sequence is not over in the engine", True)
        families = {key: _family(name, words) for key, (name, words) in counters.items()}
        # A family that is collected takes its metrics along.
        self._families: tuple[_Family, ...] = (
            requests,
            flying,
            *families.values(),
        )
        self._outcomes = {outcome: requests.Metric(labels={"outcome": outcome}) for outcome in OUTCOMES}
        self._counters = {key: family.Metric(labels={}) for key, family in families.items()}
        self._in_flight = flying.Metric(labels={})
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let go of the metrics while the server can still be told; left to the interpreter's end they crash it."""
        with self._lock:
            self._outcomes, self._counters, self._families = {}, {}, ()
            del self._in_flight

    def began(self) -> None:
        """A request was taken."""
        with self._lock:
            self._in_flight.increment(1)

    def left(self) -> None:
        """A request holds nothing any more."""
        with self._lock:
            self._in_flight.increment(-1)

    def ended(self, outcome: str, counts: dict[str, int]) -> None:
        """A request was answered; `counts` has the keys prompt, output, steps, drafted, accepted."""
        with self._lock:
            self._outcomes[outcome].increment(1)
            for key, value in counts.items():
                if value:
                    self._counters[key].increment(value)
