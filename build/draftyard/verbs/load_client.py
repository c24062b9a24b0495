"""Puts one load on a running server: all arms in turns, closed or open loop, each request one record."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from draftyard.doors.endpoint import Endpoint
from draftyard.doors.server_gauges import kv_cache_share
from draftyard.nouns.load import Arrival, CacheUse, LoadLevel
from draftyard.nouns.policy import Policy
from draftyard.nouns.prompt import Prompt
from draftyard.nouns.timeline import Arm, EntryRequest, Outcome, RequestRecord, Timeline
from draftyard.nouns.verification import Verify
from draftyard.rules.cache_busting import busted, request_id
from draftyard.rules.draft_choice import DraftChoice
from draftyard.rules.load_plan import Block, arrival_times
from draftyard.rules.statistics import percentile

HEARTBEAT_S = 0.02
GAUGE_PERIOD_S = 1.0
FIRST_RETRY_S = 0.05
TOUCH_TOKENS = 1


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """How each arm asks for its draft length: of a server with a policy, or of one without."""

    draft_length: int
    policy: Policy | None = None
    served: bool = False

    def choice(self, arm: Arm) -> DraftChoice | None:
        """What follows the load for this arm, when that is the client's part."""
        return DraftChoice(self.policy) if arm is Arm.POLICY and self.policy is not None and not self.served else None

    def draft_tokens(self, arm: Arm, choice: DraftChoice | None) -> int | None:
        """`num_draft_tokens` of a request sent now; None leaves it to the server."""
        if arm is Arm.BASELINE:
            return 0
        if choice is not None:
            return choice.draft_tokens(self.draft_length)
        return self.draft_length if arm is Arm.SPECULATIVE and self.served else None


@dataclass(frozen=True, slots=True)
class Ran:
    """The records of one load, and how the client fared: cores it used, how late its own clock was (p95)."""

    records: tuple[RequestRecord, ...]
    client_cpu_cores: float
    client_lag_ms: float
    kv_cache_share: float | None


class LoadClient:
    """Asks one server; `salt` makes the beginnings of its prompts differ from those of other cells."""

    def __init__(
        self, endpoint: Endpoint, settings: Verify, arms: ArmSettings, salt: str, metrics_url: str = ""
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._arms = arms
        self._salt = salt
        self._metrics_url = metrics_url
        self._records: list[RequestRecord] = []
        self._started = 0.0

    async def run(self, level: LoadLevel, plan: Sequence[Block]) -> Ran:
        """Block after block; a request that fails becomes a record like any other."""
        if self._settings.prefix_cache is CacheUse.KEPT:
            await self._touch(plan)
        self._records = []
        self._started, cpu = time.perf_counter(), time.process_time()
        lags, shares = list[float](), list[float]()
        watchers = [asyncio.create_task(_heartbeat(lags)), asyncio.create_task(self._gauge(shares))]
        try:
            for block in plan:
                if level.arrival is Arrival.CLOSED:
                    await self._closed(level, block)
                else:
                    await self._open(level, block)
        finally:
            for watcher in watchers:
                watcher.cancel()
        wall_s = time.perf_counter() - self._started
        return Ran(
            records=tuple(self._records),
            client_cpu_cores=round((time.process_time() - cpu) / wall_s, 4) if wall_s else 0.0,
            client_lag_ms=round(percentile(lags, 0.95) * 1000, 3) if lags else 0.0,
            kv_cache_share=max(shares, default=None),
        )

    async def _touch(self, plan: Sequence[Block]) -> None:
        """Each prompt once, unmeasured: all arms then find the same in the server's cache."""
        for prompt in {prompt.id: prompt for block in plan for prompt in block.prompts}.values():
            request = EntryRequest(prompt.chat_json(), TOUCH_TOKENS, chat=True, num_draft_tokens=0)
            await self._endpoint.generate(request.call(), timeout_s=self._settings.request_timeout_s)

    async def _closed(self, level: LoadLevel, block: Block) -> None:
        waiting = list(reversed(block.prompts))
        clients = min(level.concurrency, len(waiting))
        choice = self._arms.choice(block.arm)
        if choice is not None:
            # All of them send at once: the first one already meets the load of all.
            choice.moved(clients)

        async def client() -> None:
            while waiting:
                await self._ask(level, block, waiting.pop(), choice, None)
            if choice is not None:
                choice.moved(-1)

        await asyncio.gather(*(client() for _ in range(clients)))

    async def _open(self, level: LoadLevel, block: Block) -> None:
        seed = self._settings.random_seed + block.turn
        times = arrival_times(level.arrival, level.request_rate, len(block.prompts), seed)
        choice = self._arms.choice(block.arm)
        begun_s = time.perf_counter() - self._started

        async def client(prompt: Prompt, due_s: float) -> None:
            await asyncio.sleep(max(0.0, self._started + due_s - time.perf_counter()))
            if choice is not None:
                choice.moved(1)
            await self._ask(level, block, prompt, choice, due_s)
            if choice is not None:
                choice.moved(-1)

        await asyncio.gather(
            *(client(prompt, begun_s + time_s) for prompt, time_s in zip(block.prompts, times, strict=True))
        )

    async def _ask(
        self, level: LoadLevel, block: Block, prompt: Prompt, choice: DraftChoice | None, due_s: float | None
    ) -> None:
        sent_s = time.perf_counter() - self._started
        draft_tokens = self._arms.draft_tokens(block.arm, choice)
        asked = prompt
        if self._settings.prefix_cache is CacheUse.BUSTED:
            asked = busted(prompt, request_id(self._salt, level.words, block.index, prompt.id))
        limit = min(self._settings.max_tokens, prompt.max_tokens or self._settings.max_tokens)
        request = EntryRequest(asked.chat_json(), limit, chat=True, num_draft_tokens=draft_tokens)
        timeline, attempts = await self._with_retries(request)
        self._records.append(
            RequestRecord(
                prompt_id=prompt.id,
                domain=prompt.domain,
                arm=block.arm,
                concurrency=level.concurrency,
                block=block.index,
                sent_s=sent_s,
                timeline=timeline,
                turn=block.turn,
                request_rate=level.request_rate,
                scheduled_s=due_s,
                draft_tokens=draft_tokens,
                attempts=attempts,
            )
        )

    async def _with_retries(self, request: EntryRequest) -> tuple[Timeline, int]:
        """Only refusals are tried again, and only when the recipe says so; the number of tries goes into the record."""
        for attempt in range(self._settings.retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_RETRY_S * 2 ** (attempt - 1))
            timeline = await self._endpoint.generate(request.call(), timeout_s=self._settings.request_timeout_s)
            if timeline.outcome is not Outcome.REFUSED:
                break
        return timeline, attempt + 1

    async def _gauge(self, shares: list[float]) -> None:
        """How full the server's KV cache is, once a second, where the server tells."""
        while self._metrics_url:
            share = await asyncio.to_thread(kv_cache_share, self._metrics_url)
            if share is None:
                return
            shares.append(share)
            await asyncio.sleep(GAUGE_PERIOD_S)


async def _heartbeat(lags: list[float]) -> None:
    """How much later than asked the client wakes up: what a client without a free core cannot hide."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(HEARTBEAT_S)
        lags.append(time.perf_counter() - before - HEARTBEAT_S)
