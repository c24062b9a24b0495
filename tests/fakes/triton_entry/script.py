"""What the scripted entry answers: known tokens, known steps, and one fault at a time."""

import hashlib
import random
import re
from dataclasses import dataclass
from enum import Enum

ACCEPTED_BY_STEP = (2, 0, 3, 1)
DRAFT_LENGTH = 4
ANSWER_TOKENS = 400
VOCABULARY = ("boats", "drift", "along", "rivers", "while", "leaves", "settle", "under", "bridges", "slowly")
OTHER_SCRIPTS = ("Grüße", "🎉", "日本語", "Привет")


class Fault(str, Enum):
    """Everything that can be wrong with a server."""

    NONE = "none"
    WRONG_TOKEN = "wrong_token"
    NEVER_DRAFTS = "never_drafts"
    DRAFTS_WHEN_OFF = "drafts_when_off"
    IGNORES_CANCEL = "ignores_cancel"
    LEAKS_STOP_WORD = "leaks_stop_word"
    CUTS_CHARACTERS = "cuts_characters"
    ACCEPTS_ANYTHING = "accepts_anything"
    STREAMS_OTHER_TEXT = "streams_other_text"
    RESET = "reset"
    STALL = "stall"
    NO_END_MARK = "no_end_mark"
    EMPTY = "empty"
    REFUSED = "refused"
    QUEUE_FULL = "queue_full"
    ERROR_FIRST = "error_first"
    ERROR_MIDWAY = "error_midway"
    WRONG_COUNT = "wrong_count"
    NEVER_ACCEPTS = "never_accepts"
    COUNTS_REJECTED = "counts_rejected"
    KEEPS_STATE = "keeps_state"
    REFUSED_TWICE = "refused_twice"
    DRAWS_OTHERWISE = "draws_otherwise"
    ACCEPTS_LESS_TOGETHER = "accepts_less_together"


@dataclass(frozen=True)
class Pace:
    """Seconds of the prefill, of a plain step, and of a speculative one.

    A speculative step takes `per_request_s` longer for each other request in flight, so that there is a crossover.
    `again_s` is the prefill of a prompt that was asked before (None: as the first time). `serial` lets one request
    through at a time.
    """

    prefill_s: float = 0.002
    plain_step_s: float = 0.002
    speculative_step_s: float = 0.002
    per_request_s: float = 0.0
    again_s: float | None = None
    serial: bool = False


@dataclass(frozen=True)
class Step:
    """What one engine step brings."""

    token_ids: tuple[int, ...]
    drafted: int
    accepted: int


def planned_ids(prompt: str, count: int) -> tuple[int, ...]:
    """Token ids of the answer to a prompt: the same for the same prompt."""
    seed = hashlib.sha256(prompt.encode()).digest()
    return tuple(seed[index % len(seed)] % len(VOCABULARY) for index in range(count))


def token_text(token_id: int, prompt: str, position: int) -> str:
    """The piece of text of one token."""
    if "日本語" in prompt and position < len(OTHER_SCRIPTS):
        return f" {OTHER_SCRIPTS[position]}"
    return f" {VOCABULARY[token_id % len(VOCABULARY)]}"


def drawn_ids(prompt: str, count: int, seed: int, skewed: bool) -> tuple[int, ...]:
    """Token ids drawn with a seed: of ten alike, or with a weight on the first ones."""
    draws = random.Random(f"{prompt}/{seed}")
    return tuple(draws.randrange(10) if not skewed else draws.choice((0, 0, 0, 1, 1, 2)) for _ in range(count))


def planned_steps(
    ids: tuple[int, ...], speculate: bool, accepted_by_step: tuple[int, ...] = ACCEPTED_BY_STEP
) -> tuple[Step, ...]:
    """The prefill's token, then verification steps that accept 2, 0, 3, 1, 2, ... of 4 drafts, cut at the end."""
    steps = [Step(ids[:1], 0, 0)]
    position = 1
    while position < len(ids):
        accepted = accepted_by_step[(len(steps) - 1) % len(accepted_by_step)] if speculate else 0
        emitted = ids[position : position + accepted + 1]
        drafted = min(DRAFT_LENGTH, len(ids) - position) if speculate else 0
        steps.append(Step(emitted, drafted, min(accepted, len(emitted))))
        position += len(emitted)
    return tuple(steps)


def named_fault(prompt: str) -> Fault | None:
    """A prompt may ask for a fault: `fault:reset`."""
    found = re.search(r"fault:(\w+)", prompt)
    return Fault(found.group(1)) if found else None
