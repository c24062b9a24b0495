"""Measures a running server in a closed loop: both arms in turns, on the same prompts, tier by tier."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from draftyard.doors.endpoint import Endpoint
from draftyard.doors.measuring_host import now_utc
from draftyard.doors.report_files import Cell, EvidenceStore
from draftyard.nouns.digest import Json
from draftyard.nouns.prompt import Message, Prompt
from draftyard.nouns.timeline import Arm, EntryRequest, Outcome, RequestRecord
from draftyard.nouns.verification import Verify
from draftyard.rules.load_plan import Block, blocks, tier_prompts

Show: TypeAlias = Callable[[str], None]

RECORD_FORMAT = 1
WARM_UP_TOKENS = 16
# Asked before anything is measured, in both arms, and never measured.
WARM_UP_PROMPTS = (
    Prompt("warm-up-1", "warm-up", "train", "short", (Message("user", "Describe a walk along a river in autumn."),)),
    Prompt("warm-up-2", "warm-up", "train", "short", (Message("user", "List the months of the year, twice."),)),
)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of one server: the repository it serves, the prompts that may be measured, where and how."""

    repository_key: str
    prompts: tuple[Prompt, ...]
    settings: Verify
    host: str
    request_timeout_s: float = 180.0

    def tier_size(self, concurrency: int) -> int:
        """Requests of one arm at one tier: at least the concurrency, or the load is never reached."""
        return max(self.settings.requests_per_tier, concurrency)

    def cell_parameters(self, concurrency: int, prompts: Sequence[Prompt]) -> dict[str, Json]:
        """Everything that decides what a tier's records mean."""
        return {
            "format": RECORD_FORMAT,
            "repository": self.repository_key,
            "concurrency": concurrency,
            "max_tokens": self.settings.max_tokens,
            "prompts": [prompt.digest for prompt in prompts],
            "host": self.host,
        }

    def output_limit(self, prompt: Prompt) -> int:
        """The recipe's limit, or the prompt's own when it is lower."""
        return min(self.settings.max_tokens, prompt.max_tokens or self.settings.max_tokens)


async def measure_tiers(
    endpoint: Endpoint, load: Load, store: EvidenceStore, reuse_evidence: bool, show: Show
) -> tuple[Cell, ...]:
    """One cell per tier, in order; those on disk are used again when allowed and whole."""
    cells: list[Cell] = []
    rate: float | None = None
    for tier, concurrency in enumerate(load.settings.concurrency):
        prompts = tier_prompts(load.prompts, tier, load.tier_size(concurrency))
        parameters = load.cell_parameters(concurrency, prompts)
        known = store.load(load.repository_key, parameters) if reuse_evidence else None
        if known is not None and all(record.timeline.outcome is Outcome.SUCCESS for record in known.records):
            show(f"concurrency {concurrency}: have, measured {known.facts.measured_at}")
            cells.append(known)
            continue
        if rate is None:
            rate = await _warm_up(endpoint, load)
            show(_estimate(load, tier, rate))
        show(f"concurrency {concurrency}: {len(prompts)} requests in each arm")
        started, cpu = time.perf_counter(), time.process_time()
        records = await _tier(endpoint, load, concurrency, blocks(prompts, concurrency, tier))
        cores = (time.process_time() - cpu) / (time.perf_counter() - started)
        cells.append(store.save(load.repository_key, parameters, records, now_utc(), round(cores, 4)))
    return tuple(cells)


async def _warm_up(endpoint: Endpoint, load: Load) -> float:
    """Both arms once; gives output tokens per second of one plain request."""
    rate = 0.0
    for prompt in WARM_UP_PROMPTS:
        for draft_tokens in (None, 0):
            request = EntryRequest(prompt.chat_json(), WARM_UP_TOKENS, chat=True, num_draft_tokens=draft_tokens)
            timeline = await endpoint.generate(request.call(), timeout_s=load.request_timeout_s)
            rate = timeline.tokens / timeline.end_s
    return rate


def _estimate(load: Load, first_tier: int, rate: float) -> str:
    """An upper bound: every answer as long as allowed, plain speed, and no gain from decoding together above 2x."""
    seconds = 0.0
    for concurrency in load.settings.concurrency[first_tier:]:
        tokens = 2 * load.tier_size(concurrency) * load.settings.max_tokens
        seconds += tokens / (max(rate, 0.01) * min(concurrency, 2))
    return f"warm: {rate:.0f} tokens/s alone; at most about {seconds:.0f} s to measure"


async def _tier(endpoint: Endpoint, load: Load, concurrency: int, plan: Sequence[Block]) -> tuple[RequestRecord, ...]:
    started = time.perf_counter()
    records: list[RequestRecord] = []
    for block in plan:
        waiting = list(reversed(block.prompts))

        async def client(block: Block = block, waiting: list[Prompt] = waiting) -> None:
            while waiting:
                prompt = waiting.pop()
                sent_s = time.perf_counter() - started
                request = EntryRequest(
                    prompt.chat_json(),
                    load.output_limit(prompt),
                    chat=True,
                    num_draft_tokens=0 if block.arm is Arm.BASELINE else None,
                )
                timeline = await endpoint.generate(request.call(), timeout_s=load.request_timeout_s)
                records.append(
                    RequestRecord(prompt.id, prompt.domain, block.arm, concurrency, block.index, sent_s, timeline)
                )

        await asyncio.gather(*(client() for _ in range(concurrency)))
    return tuple(records)
