"""Which prompt is asked in which tier, block and arm, and when: the same prompts for all arms, their order balanced."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftyard.nouns.load import Arrival
from draftyard.nouns.prompt import Prompt
from draftyard.nouns.timeline import Arm

TWO_ARMS = (Arm.BASELINE, Arm.SPECULATIVE)
# An interval over fewer turns than that is so wide that nothing follows from it.
LEAST_TURNS = 4


@dataclass(frozen=True, slots=True)
class Block:
    """A run of prompts asked in one arm without a pause between them; in a turn every arm has one such block."""

    index: int
    arm: Arm
    prompts: tuple[Prompt, ...]
    turn: int = 0


def by_turns(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """The prompts with their domains taking turns, so that every run of them is mixed; order is by id within one."""
    domains: dict[str, list[Prompt]] = {}
    for prompt in sorted(prompts, key=lambda one: (one.domain, one.id)):
        domains.setdefault(prompt.domain, []).append(prompt)
    turns = max((len(listed) for listed in domains.values()), default=0)
    return tuple(listed[turn] for turn in range(turns) for listed in domains.values() if turn < len(listed))


def tier_size(requests_per_tier: int, concurrency: int) -> int:
    """Requests of one arm at one tier: `LEAST_TURNS` blocks at least, each large enough for the load to be reached."""
    return max(requests_per_tier, LEAST_TURNS * max(concurrency, 2))


def tier_prompts(prompts: Sequence[Prompt], tier: int, requests: int) -> tuple[Prompt, ...]:
    """The prompts of one tier: the next `requests` of the pack, so that a tier never asks what another one asked.

    A pack with too few prompts is begun again (see `repeats`); ValueError when there is no prompt at all.
    """
    ordered = by_turns(prompts)
    if not ordered:
        raise ValueError("the pack has no prompt")
    start = tier * requests
    return tuple(ordered[(start + offset) % len(ordered)] for offset in range(requests))


def repeats(prompts: Sequence[Prompt], tiers: int, requests: int) -> bool:
    """True when some prompt has to be asked in more than one tier."""
    return tiers * requests > len(prompts)


def blocks(
    prompts: Sequence[Prompt], concurrency: int, tier: int, arms: tuple[Arm, ...] = TWO_ARMS, first: int = 0
) -> tuple[Block, ...]:
    """All arms in turns, each order followed by its reverse (ABBA, ABC CBA): a steady drift favours none of them.

    With three arms another one comes to the middle from pair to pair of turns. A block holds at least `concurrency`
    prompts, so that the asked load is reached, and at least two. Numbers of blocks and turns begin at `first`.
    """
    size = max(concurrency, 2)
    count = max(1, len(prompts) // size)
    bounds = [round(index * len(prompts) / count) for index in range(count + 1)]
    listed: list[Block] = []
    for turn in range(count):
        part = tuple(prompts[bounds[turn] : bounds[turn + 1]])
        for arm in order_of_arms(arms, turn + tier):
            listed.append(Block(first + len(listed), arm, part, first + turn))
    return tuple(listed)


def order_of_arms(arms: tuple[Arm, ...], turn: int) -> tuple[Arm, ...]:
    """The order in one turn."""
    shift = (turn // 2) % len(arms) if len(arms) > 2 else 0
    turned = arms[shift:] + arms[:shift]
    return turned if turn % 2 == 0 else turned[::-1]


def arrival_times(arrival: Arrival, request_rate: float, count: int, seed: int) -> tuple[float, ...]:
    """When each request of an open loop is due, in seconds from the start of its block; the first one at 0.

    Poisson arrivals have exponential gaps of mean 1 / rate; the same seed gives the same times, so that all arms of a
    turn meet the same load.
    """
    if count == 0:
        return ()
    gaps = np.full(count - 1, 1.0 / request_rate)
    if arrival is Arrival.POISSON:
        gaps = np.random.default_rng(seed).exponential(1.0 / request_rate, count - 1)
    return (0.0, *np.cumsum(gaps).tolist())
