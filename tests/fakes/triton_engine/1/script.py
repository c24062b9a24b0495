"""What the scripted engine does for one request: which tokens, how many a step, which fault."""

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

FAULTS = (
    "",
    "error_first",
    "error_mid",
    "error_mid_then_end",
    "end_early",
    "stall",
    "ignore_stop",
    "crash",
    "silent_end",
    "never_drafts",
    "counts_rejected",
    "no_progress",
)


@dataclass(frozen=True)
class Script:
    """`accepted` is cycled, one number a verification step; None draws them with `acceptance_rate` a position.

    `fault_after` counts tokens: the fault happens once so many were sent. `wrong_every` n > 0 changes every n-th token.
    `draft` holds changes for a model whose parameter `role` is draft.
    """

    reply: str | None = None
    ids: tuple[int, ...] | None = None
    step_ms: float = 0.0
    draft_len: int = 0
    accepted: tuple[int, ...] | None = None
    acceptance_rate: float = 0.6
    seed: int = 0
    fault: str = ""
    fault_after: int = 0
    wrong_every: int = 0
    draft: Mapping[str, object] | None = None


def with_settings(script: Script, settings: Mapping[str, object]) -> Script:
    """Replace fields by name; ValueError for an unknown name or fault."""
    lists = {name: tuple(value) for name, value in settings.items() if isinstance(value, list)}
    try:
        changed = replace(script, **{**settings, **lists})  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"script: {error}") from None
    if changed.fault not in FAULTS:
        raise ValueError(f"script: fault {changed.fault!r} is none of {FAULTS}")
    return changed


def script_of_prompt(prompt: str, default: Script, role: str = "") -> tuple[Script, str]:
    """A prompt that begins with a JSON object has a script of its own, any other follows the default; and the prompt.

    What follows the object is output that a loop over a draft and a target has sent back.
    """
    text = prompt.lstrip()
    script = default
    if text.startswith("{"):
        settings, end = json.JSONDecoder().raw_decode(text)
        prompt = prompt[: len(prompt) - len(text) + end]
        script = with_settings(default, settings)
    if role == "draft" and script.draft:
        script = with_settings(script, script.draft)
    return script, prompt


def planned_ids(
    script: Script, prompt_ids: Sequence[int], max_tokens: int, encode: Callable[[str], list[int]], vocabulary: int
) -> list[int]:
    """The token ids of the whole answer; the same prompt gives the same answer, whatever the draft length.

    Random answers go on for ever, so that a longer answer begins with the shorter one.
    """
    if script.ids is not None:
        ids = list(script.ids)
    elif script.reply is not None:
        ids = encode(script.reply)
    else:
        digest = hashlib.sha256(repr((script.seed, tuple(prompt_ids))).encode()).digest()
        generator = random.Random(digest)
        ids = [generator.randrange(vocabulary) for _ in range(max_tokens)]
    if script.wrong_every:
        ids = [(i + 1) % vocabulary if (n + 1) % script.wrong_every == 0 else i for n, i in enumerate(ids)]
    return ids[:max_tokens]


def accepted_run(draft: Sequence[int], truth: Sequence[int]) -> int:
    """How many tokens of a draft from outside stand."""
    count = 0
    for one, other in zip(draft, truth, strict=False):
        if one != other:
            break
        count += 1
    return count


class Drafts:
    """How many draft tokens each verification step accepts."""

    def __init__(self, script: Script, draft_len: int) -> None:
        self._script = script
        self._draft_len = draft_len
        self._random = random.Random(script.seed)
        self._step = 0

    def next(self, left: int) -> tuple[int, int]:
        """(drafted, accepted) of the next step when `left` tokens are still to come."""
        drafted = 0 if self._script.fault == "never_drafts" else min(self._draft_len, max(left - 1, 0))
        pattern = self._script.accepted
        if pattern is not None:
            accepted = pattern[self._step % len(pattern)]
        else:
            accepted = 0
            while accepted < drafted and self._random.random() < self._script.acceptance_rate:
                accepted += 1
        self._step += 1
        return drafted, min(accepted, drafted)
