"""What a smoke check asks of the answers it got: each turns observations into one verdict with its evidence."""

import itertools
from collections.abc import Mapping, Sequence

from draftyard.nouns.losslessness import Divergence, Losslessness
from draftyard.nouns.report import Check
from draftyard.nouns.report_part import Verdict
from draftyard.nouns.timeline import Outcome, Timeline

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
GAUGE = "draftyard_requests_in_flight"
RELEASE_LIMIT_S = 2.0
SHOWN_TOKENS = 4


def passed(condition: bool) -> Verdict:
    """A condition as a verdict."""
    return Verdict.PASS if condition else Verdict.FAIL


def shown(text: str, limit: int = 60) -> str:
    """A text short enough for a table."""
    flat = text.replace("\n", "\\n")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token that differs, also when one answer only ends earlier; None when equal."""
    for index, (one, other) in enumerate(itertools.zip_longest(left, right)):
        if one != other:
            return index
    return None


def check_models_ready(states: Mapping[str, bool], entry: str) -> Check:
    """Every model of the repository is loaded, and the entry is among them."""
    late = sorted(name for name, ready in states.items() if not ready)
    missing = [] if entry in states else [entry]
    measured = f"{sum(states.values())} of {len(states)} ready"
    if late or missing:
        measured += f"; not ready: {', '.join(late + missing)}"
    return Check(
        name="every model is ready",
        verdict=passed(not late and not missing),
        expected=f"all models ready, {entry} among them",
        measured=measured,
        evidence=", ".join(sorted(states)),
    )


def check_generation(name: str, timeline: Timeline) -> Check:
    """One whole answer: the end mark came and there are tokens."""
    measured = f"{timeline.outcome.value}, {timeline.tokens} tokens in {len(timeline.events)} events"
    if timeline.error:
        measured += f": {timeline.error}"
    return Check(
        name=name,
        verdict=passed(timeline.outcome is Outcome.SUCCESS and bool(timeline.text)),
        expected="a whole answer with an end mark and some text",
        measured=measured,
        evidence=f"{shown(timeline.text)!r}, end mark {timeline.end_mark.value} {timeline.finish_reason}".strip(),
    )


def check_same(name: str, left: Timeline, right: Timeline) -> Check:
    """Two ways to ask for the same answer give the same text and, where both carry ids, the same tokens."""
    whole = left.outcome is right.outcome is Outcome.SUCCESS
    both = bool(left.token_ids) and bool(right.token_ids)
    index = first_difference(left.token_ids, right.token_ids) if both else None
    texts = left.text == right.text
    measured = "equal" if whole and texts and index is None else "different"
    if not whole:
        measured = f"{left.outcome.value} and {right.outcome.value}: {left.error or right.error}"
    elif index is not None:
        measured = f"tokens differ from number {index} on"
    evidence = f"{left.tokens} tokens" if texts else f"{shown(left.text)!r} / {shown(right.text)!r}"
    return Check(
        name=name,
        verdict=passed(whole and texts and index is None),
        expected="same text and tokens" if both else "same text",
        measured=measured,
        evidence=evidence,
    )


def compare(prompt_id: str, where: str, baseline: Timeline, speculative: Timeline) -> Divergence | None:
    """The first token at which two greedy answers part; None when they are the same."""
    index = first_difference(baseline.token_ids, speculative.token_ids)
    if index is None:
        return None
    reach = slice(index, index + SHOWN_TOKENS)
    return Divergence(
        prompt_id=prompt_id,
        where=where,
        index=index,
        baseline=baseline.token_ids[reach],
        speculative=speculative.token_ids[reach],
    )


def losslessness(where: str, pairs: Sequence[tuple[str, Timeline, Timeline]]) -> Losslessness:
    """(prompt id, baseline, speculative) compared token by token; pairs without ids or whole answers do not count."""
    usable = [
        (prompt_id, left, right)
        for prompt_id, left, right in pairs
        if left.outcome is right.outcome is Outcome.SUCCESS and left.token_ids and right.token_ids
    ]
    found = [compare(prompt_id, where, left, right) for prompt_id, left, right in usable]
    divergences = tuple(one for one in found if one is not None)
    return Losslessness(compared=len(usable), identical=len(usable) - len(divergences), divergences=divergences)


def joined(parts: Sequence[Losslessness]) -> Losslessness:
    """Several comparisons as one."""
    return Losslessness(
        compared=sum(part.compared for part in parts),
        identical=sum(part.identical for part in parts),
        divergences=tuple(one for part in parts for one in part.divergences),
        floor_compared=sum(part.floor_compared for part in parts),
        floor_identical=sum(part.floor_identical for part in parts),
        tolerated_prompts=max((part.tolerated_prompts for part in parts), default=0),
        relaxed=any(part.relaxed for part in parts),
        sampled=tuple(one for part in parts for one in part.sampled),
        notes=tuple(note for part in parts for note in part.notes),
    )


def check_lossless(found: Losslessness, asked: int) -> Check:
    """Greedy answers with and without speculation are the same for every prompt that was asked."""
    measured = f"{found.identical} of {asked} prompts give the same tokens"
    if found.compared < asked:
        measured += f"; {asked - found.compared} could not be compared"
    evidence = "; ".join(
        f"{one.prompt_id} parts at token {one.index}: {one.baseline} without, {one.speculative} with speculation"
        for one in found.divergences
    )
    return Check(
        name="speculation changes no token",
        verdict=passed(asked > 0 and found.identical == asked),
        expected="the same tokens with and without speculation, greedy",
        measured=measured,
        evidence=evidence,
    )


def check_drafting(speculative: Sequence[Timeline], baseline: Sequence[Timeline]) -> tuple[Check, Check]:
    """Positive evidence: the engine drafts when it should, and does not when it is told not to."""
    drafted = sum(timeline.drafted or 0 for timeline in speculative)
    accepted = sum(timeline.accepted or 0 for timeline in speculative)
    silent = sum(1 for timeline in speculative if timeline.drafted is None)
    never = "; never drafts" if drafted == 0 else ""
    drafts = Check(
        name="the engine drafts",
        verdict=passed(drafted > 0),
        expected="more than 0 draft tokens over the prompts",
        measured=f"{drafted} drafted, {accepted} accepted{never}",
        evidence=f"{silent} of {len(speculative)} answers carry no draft counter" if silent else "server's counters",
    )
    kept = sum(timeline.drafted or 0 for timeline in baseline)
    off = Check(
        name="num_draft_tokens 0 turns speculation off",
        verdict=passed(kept == 0),
        expected="0 draft tokens",
        measured=f"{kept} drafted",
    )
    return drafts, off


def check_refused(name: str, timeline: Timeline) -> Check:
    """A request that makes no sense gets an error, at once and with a reason."""
    refused = timeline.outcome in (Outcome.ERROR, Outcome.REFUSED) and timeline.tokens == 0
    return Check(
        name=f"refuses {name}",
        verdict=passed(refused and bool(timeline.error)),
        expected="an error with a reason",
        measured="error" if refused else f"{timeline.outcome.value}, {timeline.tokens} tokens",
        evidence=shown(timeline.error, 160),
    )


def check_utf8(streamed: Timeline, whole: Timeline) -> Check:
    """No chunk border cuts a character. A replacement at the very end is allowed where the token limit cut one."""
    text = streamed.text
    if streamed.finish_reason == "length":
        text = text.rstrip(REPLACEMENT)
    clean = REPLACEMENT not in text
    equal = streamed.text == whole.text
    ended = streamed.outcome is Outcome.SUCCESS and whole.outcome is Outcome.SUCCESS
    measured = (
        f"{text.count(REPLACEMENT)} replacement characters, chunks {'equal' if equal else 'differ from'} the whole"
    )
    return Check(
        name="text in other scripts arrives whole",
        verdict=passed(ended and clean and equal),
        expected="no U+FFFD, and the joined chunks equal the unstreamed text",
        measured=measured if ended else f"{streamed.outcome.value} and {whole.outcome.value}",
        evidence=repr(shown(streamed.text)),
    )


def pick_stop_word(text: str) -> str | None:
    """A word of the middle of a text, with the space before it; None when the text has none that is long enough."""
    words = text.split(" ")
    for word in words[len(words) // 3 :]:
        piece = f" {word}"
        after = text.find(piece) + len(piece)
        if len(word) >= 4 and word.isalpha() and text.find(piece) > 0 and not text[after : after + 1].isalpha():
            return piece
    return None


def check_stop_word(word: str, free: Timeline, stopped: Timeline) -> Check:
    """The answer ends before the stop word, and no chunk ever showed a part of it."""
    expected = free.text[: free.text.find(word)]
    reason = stopped.finish_reason or "missing"
    return Check(
        name="a stop word never leaks",
        verdict=passed(stopped.text == expected and stopped.finish_reason == "stop_words"),
        expected=f"the text before {word!r}, finish reason stop_words",
        measured=f"finish reason {reason}, {len(stopped.text)} of {len(expected)} characters",
        evidence=f"{shown(stopped.text[-40:])!r} / {shown(expected[-40:])!r}",
    )


def check_cancel(timeline: Timeline, asked_tokens: int, released_s: float | None, gauge_known: bool) -> Check:
    """A client that goes away frees its place; `released_s` is how long that took, None when it did not happen.

    Undecided when the answer would have ended by itself within the limit.
    """
    name, expected = "a client that goes away frees its place", f"idle within {RELEASE_LIMIT_S:g} s"
    if not gauge_known:
        return skipped(name, expected, f"the server shows no gauge {GAUGE}")
    if timeline.outcome is not Outcome.CANCELLED:
        return skipped(name, expected, f"the stream was over before it could be closed: {timeline.outcome.value}")
    rate = timeline.tokens / timeline.events[-1].time_s
    left_s = (asked_tokens - timeline.tokens) / rate
    if left_s < RELEASE_LIMIT_S / 2:
        return skipped(name, expected, f"the answer was {left_s:.2f} s from its own end: too short to tell")
    freed = released_s is not None and released_s <= min(RELEASE_LIMIT_S, left_s / 2)
    return Check(
        name=name,
        verdict=passed(freed),
        expected=expected,
        measured="still busy" if released_s is None else f"idle after {released_s:.2f} s",
        evidence=f"closed after {timeline.tokens} of {asked_tokens} tokens, {left_s:.1f} s before its own end; {GAUGE}",
    )


def skipped(name: str, expected: str, reason: str) -> Check:
    """A check that could not be made, and why."""
    return Check(name=name, verdict=Verdict.SKIPPED, expected=expected, measured=reason)
