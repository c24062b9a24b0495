"""Judges greedy answers of several passes: what plain decoding does to itself first, then what speculation changes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from draftyard.nouns.losslessness import Divergence, DivergenceKind, Losslessness, SampledTest
from draftyard.nouns.report_part import Verdict
from draftyard.nouns.timeline import Arm, Outcome, Timeline
from draftyard.rules.near_ties import DivergenceCause, explain_divergence, first_divergence
from draftyard.rules.smoke_checks import SHOWN_TOKENS

TOLERATED_SHARE = 0.05
# Typical acceptance takes tokens down to about a tenth of the likeliest one's probability: ln(10) in logits.
RELAXED_REACH = math.log(10)
LEAST_RELAXED_PROMPTS = 2

# (prompt id, tokens both texts share) -> logits of all tokens behind them; None where there are none to be had.
LogitsOf: TypeAlias = Callable[[str, tuple[int, ...]], "Sequence[float] | None"]


@dataclass(frozen=True, slots=True)
class AnswerPass:
    """The answers of one pass over all prompts, by prompt id; `where` says in which order and company it was asked."""

    where: str
    arm: Arm
    answers: Mapping[str, Timeline]

    def tokens(self, prompt_id: str) -> tuple[int, ...] | None:
        """The tokens of a whole answer; None of one that failed or came without ids."""
        timeline = self.answers.get(prompt_id)
        if timeline is None or timeline.outcome is not Outcome.SUCCESS or not timeline.token_ids:
            return None
        return timeline.token_ids


def judge_passes(passes: Sequence[AnswerPass], logits_of: LogitsOf, bound: float) -> Losslessness:
    """The first baseline pass is the truth; other baseline passes give the noise floor, the rest is compared.

    A divergence is a tie or a defect by its logits (see `near_ties`); where there are none it is noise if plain
    decoding parted there or before, and unexplained otherwise. ValueError without a baseline pass.
    """
    baseline = [one for one in passes if one.arm is Arm.BASELINE]
    if not baseline:
        raise ValueError("no baseline pass")
    truth = baseline[0]
    floor_compared, floor_parted = 0, dict[str, int]()
    for again in baseline[1:]:
        for prompt_id, expected, found in _both(truth, again):
            floor_compared += 1
            index = first_divergence(expected, found)
            if index is not None:
                floor_parted[prompt_id] = min(index, floor_parted.get(prompt_id, index))
    floor_same = sum(expected == found for again in baseline[1:] for _, expected, found in _both(truth, again))
    compared, divergences = 0, list[Divergence]()
    for one in passes:
        for prompt_id, expected, found in _both(truth, one) if one.arm is not Arm.BASELINE else ():
            compared += 1
            parted = _explain(prompt_id, one.where, expected, found, floor_parted, logits_of, bound)
            divergences += [] if parted is None else [parted]
    divergences = _named_relaxed(divergences)
    return Losslessness(
        compared=compared,
        identical=compared - len(divergences),
        divergences=tuple(divergences),
        floor_compared=floor_compared,
        floor_identical=floor_same,
        tolerated_prompts=max(1, math.floor(TOLERATED_SHARE * len(truth.answers))),
        relaxed=any(one.kind is DivergenceKind.RELAXED for one in divergences),
        notes=_notes(passes, divergences),
    )


def _both(truth: AnswerPass, other: AnswerPass) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    found = []
    for prompt_id in truth.answers:
        expected, tokens = truth.tokens(prompt_id), other.tokens(prompt_id)
        if expected is not None and tokens is not None:
            found.append((prompt_id, expected, tokens))
    return found


def _explain(
    prompt_id: str,
    where: str,
    expected: tuple[int, ...],
    found: tuple[int, ...],
    floor_parted: Mapping[str, int],
    logits_of: LogitsOf,
    bound: float,
) -> Divergence | None:
    index = first_divergence(expected, found)
    if index is None:
        return None
    reach = slice(index, index + SHOWN_TOKENS)
    parted = Divergence(
        prompt_id=prompt_id, where=where, index=index, baseline=expected[reach], speculative=found[reach]
    )
    logits = logits_of(prompt_id, expected[:index])
    if logits is None:
        noise = floor_parted.get(prompt_id, math.inf) <= index
        return parted.model_copy(update={"kind": DivergenceKind.NOISE}) if noise else parted
    cause = explain_divergence(expected, found, lambda _: logits, bound)
    if cause is None:
        return None
    kind = DivergenceKind.TIE if cause.cause is DivergenceCause.TIE else DivergenceKind.DEFECT
    shortfall = cause.shortfall if math.isfinite(cause.shortfall) else None
    return parted.model_copy(update={"kind": kind, "top_two_gap": cause.top_two_gap, "shortfall": shortfall})


def _named_relaxed(divergences: Sequence[Divergence]) -> list[Divergence]:
    """Defects that are all likely tokens, in several prompts, have the mark of relaxed acceptance."""
    defects = [one for one in divergences if one.kind is DivergenceKind.DEFECT]
    likely = all(one.shortfall is not None and one.shortfall <= RELAXED_REACH for one in defects)
    if not likely or len({one.prompt_id for one in defects}) < LEAST_RELAXED_PROMPTS:
        return list(divergences)
    return [
        one.model_copy(update={"kind": DivergenceKind.RELAXED}) if one.kind is DivergenceKind.DEFECT else one
        for one in divergences
    ]


def _notes(passes: Sequence[AnswerPass], divergences: Sequence[Divergence]) -> tuple[str, ...]:
    """What the pattern over passes tells beside the single answers."""
    wrong = [one for one in divergences if one.kind not in (DivergenceKind.TIE, DivergenceKind.NOISE)]
    asked = [one.where for one in passes if one.arm is not Arm.BASELINE]
    places = {name: {one.where for one in wrong if one.prompt_id == name} for name in {one.prompt_id for one in wrong}}
    notes = []
    # Wrong in each pass but the first: a fault that strikes by chance would spare some.
    if len(asked) > 2 and any(found == set(asked[1:]) for found in places.values()):
        notes.append("the first answers are right and later ones are not: something is kept between requests")
    if any(one.kind is DivergenceKind.RELAXED for one in divergences):
        notes.append(
            "the tokens that differ are likely ones, not the likeliest: acceptance seems to be relaxed (lossy)"
        )
    return tuple(notes)


def lossless_verdict(found: Losslessness) -> tuple[Verdict, str]:
    """Pass when all answers are the same, or when few prompts part by ties alone; the reason otherwise."""
    if found.compared == 0:
        return Verdict.SKIPPED, "no answer could be compared"
    tied = {DivergenceKind.TIE, DivergenceKind.NOISE}
    wrong = [one for one in found.divergences if one.kind not in tied]
    sampled = [one for one in found.sampled if one.verdict is Verdict.FAIL]
    prompts = {one.prompt_id for one in found.divergences}
    words = [
        f"{one.prompt_id} ({one.where}) at token {one.index}: {one.kind.value}"
        for one in (wrong or found.divergences)[:5]
    ]
    words += [f"drawn answers to {one.prompt_id} differ (p = {one.p_value:.2g})" for one in sampled]
    if wrong or sampled:
        return Verdict.FAIL, "; ".join([*found.notes, *words])
    if len(prompts) > found.tolerated_prompts:
        return Verdict.FAIL, "; ".join([f"{len(prompts)} prompts part by ties, {found.tolerated_prompts} may", *words])
    return Verdict.PASS, "; ".join(words)


def with_sampled(found: Losslessness, tests: Sequence[SampledTest]) -> Losslessness:
    """The same with the tests of drawn answers."""
    return found.model_copy(update={"sampled": tuple(tests)})
