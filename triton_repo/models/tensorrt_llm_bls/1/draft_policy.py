"""How long drafts may be at the load of the moment: the measured policy, as the entry follows it."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

VERSION = 1
DEFAULT_HYSTERESIS = 1
KEYS = frozenset({"version", "steps", "hysteresis", "enforced", "evidence"})
STEP_KEYS = frozenset({"running", "max_draft_len"})


@dataclass(frozen=True)
class PolicyStep:
    """From `running` requests in flight on, drafts have at most `max_draft_len` tokens; 0 is no speculation."""

    running: int
    max_draft_len: int


class DraftPolicy:
    """Follows the number of requests in flight; without steps it sets no limit.

    A step is entered at its load and left only when the load has fallen `hysteresis` requests further below it than
    needed, so that a load that hovers at a step does not switch back and forth. Thread-safe.
    """

    def __init__(self, steps: Sequence[PolicyStep] = (), hysteresis: int = 0, enforced: bool = False) -> None:
        self._steps = tuple(steps)
        self._hysteresis = hysteresis
        self._enforced = enforced
        self._running = 0
        self._reached = 0
        self._changes = 0
        self._lock = threading.Lock()

    @classmethod
    def read(cls, text: str) -> "DraftPolicy":
        """From a policy file's JSON; ValueError says what is wrong, so that a typing error stops the load."""
        document = _mapping(json.loads(text), KEYS, "the policy")
        if document.get("version") != VERSION:
            raise ValueError(f"the policy has version {document.get('version')!r}, this entry reads {VERSION}")
        listed = document.get("steps")
        if not isinstance(listed, list):
            raise ValueError("the policy has no list of steps")
        steps = []
        for entry in listed:
            step = _mapping(entry, STEP_KEYS, "a step of the policy")
            steps.append(PolicyStep(_whole(step, "running", 1), _whole(step, "max_draft_len", 0)))
        if any(later.running <= earlier.running for earlier, later in pairwise(steps)):
            raise ValueError("the steps of the policy must rise by load, each once")
        enforced = document.get("enforced", False)
        if not isinstance(enforced, bool):
            raise ValueError(f"enforced is {enforced!r} in the policy: true or false")
        return cls(steps, _whole(document, "hysteresis", 0, DEFAULT_HYSTERESIS), enforced)

    def adopt(self, other: "DraftPolicy") -> None:
        """Follow another policy from now on; the requests in flight stay counted."""
        with self._lock:
            self._steps, self._hysteresis, self._enforced = other._steps, other._hysteresis, other._enforced
            self._reached = 0
        self._move(0)

    def began(self) -> None:
        """A request came into flight."""
        self._move(1)

    def left(self) -> None:
        """A request left."""
        self._move(-1)

    @property
    def limit(self) -> int | None:
        """The longest draft now; None without a limit."""
        with self._lock:
            return self._steps[self._reached - 1].max_draft_len if self._reached else None

    @property
    def changes(self) -> int:
        """How often a step was entered or left."""
        with self._lock:
            return self._changes

    def draft_tokens(self, asked: int | None) -> int | None:
        """The draft length of a request now; None leaves it to the engine.

        What a request asks for is what it gets (0: never a draft), up to the engine's own limit; only an enforced
        policy shortens it.
        """
        limit = self.limit
        if asked is None:
            return limit
        return min(asked, limit) if self._enforced and limit is not None else asked

    def _move(self, change: int) -> None:
        with self._lock:
            self._running += change
            before = self._reached
            while self._reached < len(self._steps) and self._running >= self._steps[self._reached].running:
                self._reached += 1
            while self._reached and self._running < self._steps[self._reached - 1].running - self._hysteresis:
                self._reached -= 1
            self._changes += self._reached != before


class PolicyFile:
    """A policy that an operator may replace while requests run: the file is looked at every so often.

    No file is no limit. Of a file that cannot be read the old policy stays, and the reason is reported once.
    """

    def __init__(self, path: Path, policy: DraftPolicy, report: Callable[[str], None]) -> None:
        self._path = path
        self._policy = policy
        self._report = report
        self._seen: tuple[int, int, int] | None = None

    def load(self) -> None:
        """Follow what the file says; ValueError when it is no policy."""
        self._seen = self._signature()
        self._policy.adopt(DraftPolicy.read(self._path.read_text(encoding="utf-8")) if self._seen else DraftPolicy())

    def poll(self) -> None:
        """Load the file if it is another one than before."""
        if self._signature() == self._seen:
            return
        try:
            self.load()
        except (OSError, ValueError) as error:
            self._report(f"{self._path} is not followed: {error}")

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)


def _mapping(value: object, known: frozenset[str], what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")
    unknown = sorted(set(value) - known)
    if unknown:
        raise ValueError(f"{what} has an unknown key {unknown[0]!r}; it knows {', '.join(sorted(known))}")
    return value


def _whole(values: Mapping[str, object], key: str, least: int, default: int | None = None) -> int:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{key} is {value!r} in the policy: a whole number from {least}")
    return value
