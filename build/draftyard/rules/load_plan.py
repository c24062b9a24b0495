"""Which prompt is asked in which tier, block and arm: the same prompts for both arms, their order balanced."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftyard.nouns.prompt import Prompt
from draftyard.nouns.timeline import Arm


@dataclass(frozen=True, slots=True)
class Block:
    """A run of prompts asked in one arm without a pause between them."""

    index: int
    arm: Arm
    prompts: tuple[Prompt, ...]


def by_turns(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """The prompts with their domains taking turns, so that every run of them is mixed; order is by id within one."""
    domains: dict[str, list[Prompt]] = {}
    for prompt in sorted(prompts, key=lambda one: (one.domain, one.id)):
        domains.setdefault(prompt.domain, []).append(prompt)
    turns = max((len(listed) for listed in domains.values()), default=0)
    return tuple(listed[turn] for turn in range(turns) for listed in domains.values() if turn < len(listed))


def tier_prompts(prompts: Sequence[Prompt], tier: int, requests: int) -> tuple[Prompt, ...]:
    """The prompts of one tier: the next `requests` of the pack, so that a tier never asks what another one asked.

    A pack with too few prompts is begun again (see `repeats`); ValueError when one tier alone needs more than it has.
    """
    ordered = by_turns(prompts)
    if requests > len(ordered):
        raise ValueError(f"a tier asks {requests} prompts, the pack has {len(ordered)}")
    start = tier * requests
    return tuple(ordered[(start + offset) % len(ordered)] for offset in range(requests))


def repeats(prompts: Sequence[Prompt], tiers: int, requests: int) -> bool:
    """True when some prompt has to be asked in more than one tier."""
    return tiers * requests > len(prompts)


def blocks(prompts: Sequence[Prompt], concurrency: int, tier: int) -> tuple[Block, ...]:
    """Both arms in turns, ABBA: the arm that begins changes from block to block and from tier to tier.

    A block holds at least `concurrency` prompts, so that the asked load is reached, and at least two.
    """
    size = max(concurrency, 2)
    count = max(1, len(prompts) // size)
    bounds = [round(index * len(prompts) / count) for index in range(count + 1)]
    listed: list[Block] = []
    for index in range(count):
        part = tuple(prompts[bounds[index] : bounds[index + 1]])
        arms = (Arm.BASELINE, Arm.SPECULATIVE)
        for arm in arms if (index + tier) % 2 == 0 else arms[::-1]:
            listed.append(Block(len(listed), arm, part))
    return tuple(listed)
