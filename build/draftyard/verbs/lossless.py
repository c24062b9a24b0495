"""Asks the same prompts several times, alone and in company, without and with speculation, and compares the tokens."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftyard.doors.endpoint import Endpoint
from draftyard.nouns.losslessness import Losslessness, SampledTest
from draftyard.nouns.prompt import Prompt
from draftyard.nouns.timeline import Arm, EntryRequest, Outcome, Timeline
from draftyard.rules.lossless_prompts import lossless_prompts
from draftyard.rules.lossless_verdict import AnswerPass, LogitsOf, judge_passes, with_sampled
from draftyard.rules.near_ties import FLOAT32_TIE
from draftyard.rules.two_samples import compare_samples

SAMPLED_PROMPTS = 2
SAMPLED_TOKENS = 3
SAMPLED_TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class LosslessPlan:
    """How thoroughly: prompts of each domain of the pack, tokens of an answer, company, draws of a sampled prompt."""

    each_domain: int = 1
    max_tokens: int = 48
    company: int = 4
    draws: int = 0
    request_timeout_s: float = 180.0


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass over all prompts: what it is called, its arm, how many at once, and in which order."""

    where: str
    arm: Arm
    at_once: int
    order: Callable[[list[Prompt]], list[Prompt]]


def _shuffled(prompts: list[Prompt]) -> list[Prompt]:
    found = list(prompts)
    random.Random(5).shuffle(found)
    return found


def _as_listed(prompts: list[Prompt]) -> list[Prompt]:
    return prompts


def _reversed(prompts: list[Prompt]) -> list[Prompt]:
    return prompts[::-1]


def passes_of(company: int) -> tuple[_Pass, ...]:
    """Plain decoding three times, which gives the noise floor, then speculation three times in the same ways."""
    ways = (("alone", 1, _as_listed), ("alone, reversed", 1, _reversed), (f"{company} at once", company, _shuffled))
    return tuple(
        _Pass(f"{arm.value}, {words}", arm, at_once, order)
        for arm in (Arm.BASELINE, Arm.SPECULATIVE)
        for words, at_once, order in ways
    )


async def check_lossless_passes(
    endpoint: Endpoint,
    pack: Sequence[Prompt],
    plan: LosslessPlan,
    source: "LogitsSource",
    draft_tokens: int | None = None,
) -> Losslessness:
    """Six passes, judged; then drawn answers where the plan has draws. `draft_tokens` is what the arm asks for.

    Prompts go out as they are: here a prefix cache belongs to what is checked.
    """
    prompts = list(lossless_prompts(tuple(pack), plan.each_domain))
    found = []
    for one in passes_of(plan.company):
        asked = 0 if one.arm is Arm.BASELINE else draft_tokens
        answers = await _ask_all(endpoint, one.order(prompts), one.at_once, plan, asked)
        found.append(AnswerPass(one.where, one.arm, answers))
    by_id = {prompt.id: prompt for prompt in prompts}
    logits = await source.of(endpoint, [by_id[name] for name in _parted(found)])
    judged = judge_passes(found, logits, FLOAT32_TIE)
    if not plan.draws:
        return judged
    tests = [await _sampled(endpoint, prompt, plan, draft_tokens) for prompt in prompts[:SAMPLED_PROMPTS]]
    return with_sampled(judged, tests)


class LogitsSource:
    """Where logits come from: nowhere, unless a lane can replay an answer."""

    async def of(self, endpoint: Endpoint, prompts: Sequence[Prompt]) -> LogitsOf:
        """Makes ready for these prompts; the result gives None for all others."""
        return lambda prompt_id, shared: None


def _parted(passes: Sequence[AnswerPass]) -> tuple[str, ...]:
    truth = passes[0]
    return tuple(
        name for name in truth.answers if any(truth.tokens(name) != other.tokens(name) for other in passes[1:])
    )


async def _ask_all(
    endpoint: Endpoint, prompts: Sequence[Prompt], at_once: int, plan: LosslessPlan, draft_tokens: int | None
) -> dict[str, Timeline]:
    waiting = list(reversed(prompts))
    answers: dict[str, Timeline] = {}

    async def client() -> None:
        while waiting:
            prompt = waiting.pop()
            request = EntryRequest(prompt.chat_json(), plan.max_tokens, chat=True, num_draft_tokens=draft_tokens)
            answers[prompt.id] = await endpoint.generate(request.call(), timeout_s=plan.request_timeout_s)

    await asyncio.gather(*(client() for _ in range(at_once)))
    return answers


async def _sampled(endpoint: Endpoint, prompt: Prompt, plan: LosslessPlan, draft_tokens: int | None) -> SampledTest:
    """The same number of short draws in both arms, each with a seed of its own."""
    drawn: list[list[tuple[int, ...]]] = [[], []]
    waiting = [(arm, seed) for seed in range(plan.draws) for arm in (0, 1)]

    async def client() -> None:
        while waiting:
            arm, seed = waiting.pop()
            request = EntryRequest(
                prompt.chat_json(),
                SAMPLED_TOKENS,
                chat=True,
                num_draft_tokens=draft_tokens if arm else 0,
                temperature=SAMPLED_TEMPERATURE,
                seed=1 + 2 * seed + arm,
            )
            timeline = await endpoint.generate(request.call(), timeout_s=plan.request_timeout_s)
            if timeline.outcome is Outcome.SUCCESS:
                drawn[arm].append(timeline.token_ids)

    await asyncio.gather(*(client() for _ in range(plan.company)))
    return compare_samples(prompt.id, drawn[0], drawn[1], seed=plan.draws)
