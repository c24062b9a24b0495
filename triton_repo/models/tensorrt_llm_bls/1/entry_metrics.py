"""What the entry counts for Prometheus."""

import threading
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import triton_python_backend_utils as pb_utils

OUTCOMES = ("length", "end_id", "stop_words", "cancelled", "timeout", "refused", "error")
NO_LIMIT = -1
COUNTERS = {
    "prompt": ("draftyard_prompt_tokens_total", "Prompt tokens of requests that were started"),
    "output": ("draftyard_generation_tokens_total", "Output tokens, cut where the text was cut"),
    "steps": ("draftyard_verification_steps_total", "Engine steps after the prefill"),
    "drafted": ("draftyard_spec_decode_num_draft_tokens_total", "Draft tokens that were verified"),
    "accepted": ("draftyard_spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted"),
    "contradictory": (
        "draftyard_contradictory_statistics_total",
        "Requests whose engine counted more accepted tokens than it sent",
    ),
}
POSITIONS = "draftyard_spec_decode_num_accepted_tokens_per_pos_total"


class _Metric(Protocol):
    def increment(self, value: float) -> None: ...

    def set(self, value: float) -> None: ...


class _Family(Protocol):
    def Metric(self, labels: dict[str, str]) -> _Metric: ...


def _family(name: str, description: str, gauge: bool = False) -> _Family:
    kind = pb_utils.MetricFamily.GAUGE if gauge else pb_utils.MetricFamily.COUNTER
    return cast("_Family", pb_utils.MetricFamily(name=name, description=description, kind=kind))


class EntryMetrics:
    """Counters of one instance; each update is a round trip to the server, so they come once a request or less often.

    Every load of the model has a label value of its own: Triton 24.10 frees what has equal labels with the first of two
    models that leave, and a model that is loaded anew stays beside the old one until that has ended its streams.
    """

    def __init__(self) -> None:
        requests = _family("draftyard_requests_total", "Requests by how they ended")
        flying = _family("draftyard_requests_in_flight", "Requests whose sequence is not over in the engine", True)
        limit = _family(
            "draftyard_policy_max_draft_len", "Longest draft that the policy allows now, -1: no limit", True
        )
        changes = _family("draftyard_policy_changes_total", "How often the policy changed the longest draft")
        self._positions = _family(POSITIONS, "Steps in which the draft token of this position was accepted")
        families = {key: _family(name, words) for key, (name, words) in COUNTERS.items()}
        # A family that is collected takes its metrics along.
        self._families: tuple[_Family, ...] = (requests, flying, limit, changes, *families.values())
        self._load = {"load": uuid.uuid4().hex[:12]}
        self._outcomes = {outcome: requests.Metric(labels={"outcome": outcome, **self._load}) for outcome in OUTCOMES}
        self._counters = {key: family.Metric(labels=self._load) for key, family in families.items()}
        self._in_flight = flying.Metric(labels=self._load)
        self._limit = limit.Metric(labels=self._load)
        self._changes = changes.Metric(labels=self._load)
        self._by_position: dict[int, _Metric] = {}
        self._told: tuple[int, int] | None = None
        self._waiting: Counter[int] = Counter()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let go of the metrics while the server can still be told; left to the interpreter's end they crash it."""
        with self._lock:
            self._outcomes, self._counters, self._by_position, self._families = {}, {}, {}, ()
            del self._in_flight, self._limit, self._changes, self._positions

    def began(self) -> None:
        """A request was taken."""
        with self._lock:
            self._in_flight.increment(1)

    def left(self) -> None:
        """A request holds nothing any more."""
        with self._lock:
            self._in_flight.increment(-1)

    def ended(self, outcome: str, counts: Mapping[str, int], accepted_by_step: Sequence[int] = ()) -> None:
        """A request was answered; `counts` has keys of COUNTERS, `accepted_by_step` the length of each accepted run."""
        with self._lock:
            self._outcomes[outcome].increment(1)
            for key, value in counts.items():
                if value:
                    self._counters[key].increment(value)
            for accepted in accepted_by_step:
                self._waiting.update(range(accepted))

    def tick(self, limit: int | None, changes: int) -> None:
        """Tell what changes often and need not be told at once; called every so often by one thread."""
        state = (NO_LIMIT if limit is None else limit, changes)
        with self._lock:
            if state != self._told:
                self._limit.set(state[0])
                self._changes.increment(changes - (self._told[1] if self._told else 0))
                self._told = state
            for position, count in self._waiting.items():
                if position not in self._by_position:
                    labels = {"position": str(position), **self._load}
                    self._by_position[position] = self._positions.Metric(labels=labels)
                self._by_position[position].increment(count)
            self._waiting.clear()
