"""Measures a running server load by load, within a time if one is given; what is on disk is used again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from draftyard.doors.endpoint import Endpoint
from draftyard.doors.measuring_host import now_utc
from draftyard.doors.report_files import Cell, EvidenceStore
from draftyard.nouns.digest import Json, digest
from draftyard.nouns.load import Arrival, LoadLevel
from draftyard.nouns.policy import Policy
from draftyard.nouns.prompt import Message, Prompt
from draftyard.nouns.timeline import Arm, EntryRequest, Outcome
from draftyard.nouns.verification import Verify
from draftyard.rules.clusters import Estimate
from draftyard.rules.load_plan import LEAST_TURNS, TWO_ARMS, blocks, tier_prompts, tier_size
from draftyard.rules.next_load import next_concurrency, to_repeat
from draftyard.rules.verdict import pairs_of, rate_estimate
from draftyard.verbs.load_client import ArmSettings, LoadClient

Show: TypeAlias = Callable[[str], None]

RECORD_FORMAT = 2
WARM_UP_TOKENS = 16
# Blocks and turns of a repeat are numbered from here on, so that they stay apart from those before.
TURNS_OF_A_REPEAT = 10_000
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
    draft_length: int = 0
    most_concurrency: int = 256
    metrics_url: str = ""

    def level_size(self, level: LoadLevel) -> int:
        """Requests of one arm at one load."""
        return tier_size(self.settings.requests_per_tier, self.turn_size(level))

    def turn_size(self, level: LoadLevel) -> int:
        """Least requests of a block: the concurrency; in an open loop a share of the tier, so that a load builds up."""
        if level.arrival is Arrival.CLOSED:
            return level.concurrency
        return max(2, self.settings.requests_per_tier // LEAST_TURNS)

    def cell_parameters(
        self, level: LoadLevel, prompts: Sequence[Prompt], arms: tuple[Arm, ...], policy: Policy | None
    ) -> dict[str, Json]:
        """Everything that decides what a tier's records mean."""
        return {
            "format": RECORD_FORMAT,
            "repository": self.repository_key,
            "concurrency": level.concurrency,
            "request_rate": level.request_rate,
            "arrival": level.arrival.value,
            "arms": [arm.value for arm in arms],
            "policy": None if policy is None else digest(policy.model_dump(mode="json", exclude={"evidence"})),
            "prefix_cache": self.settings.prefix_cache.value,
            "random_seed": self.settings.random_seed,
            "retries": self.settings.retries,
            "max_tokens": self.settings.max_tokens,
            "prompts": [prompt.digest for prompt in prompts],
            "host": self.host,
        }


@dataclass(slots=True)
class Budget:
    """When to stop, by the process's clock; None: when the plan is done. Costs follow from what was measured."""

    deadline_s: float | None = None
    tokens_per_s: dict[int, float] = field(default_factory=dict)

    def cost_s(self, level: LoadLevel, load: Load, arms: int) -> float:
        """Seconds a level may take: every answer as long as allowed, at the rate of the nearest load measured."""
        tokens = arms * load.level_size(level) * load.settings.max_tokens
        if level.arrival is not Arrival.CLOSED:
            return arms * load.level_size(level) / level.request_rate
        known = min(self.tokens_per_s, key=lambda one: abs(one - level.concurrency), default=None)
        return tokens / self.tokens_per_s[known] if known is not None else 0.0

    def allows(self, level: LoadLevel, load: Load, arms: int) -> bool:
        """True when the level would be over before the deadline."""
        return self.deadline_s is None or time.monotonic() + self.cost_s(level, load, arms) <= self.deadline_s


class Measurer:
    """Measures levels of one server for one repository; each is a cell on disk as soon as it is over."""

    def __init__(
        self,
        endpoint: Endpoint,
        load: Load,
        store: EvidenceStore,
        reuse_evidence: bool,
        show: Show,
        budget: Budget | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._load = load
        self._store = store
        self._reuse = reuse_evidence
        self._show = show
        self.budget = Budget() if budget is None else budget
        self._warm = False

    async def explore(self, arms: ArmSettings, extra_tiers: int) -> tuple[Cell, ...]:
        """The recipe's closed-loop tiers, then up to `extra_tiers` around the crossing, in order of load.

        With a time to keep, what is left of it goes to more turns at the loads that are not settled.
        """
        chosen = (*TWO_ARMS, Arm.POLICY) if arms.served else TWO_ARMS
        wanted = self._load.settings.concurrency
        cells: dict[int, list[Cell]] = {}
        estimates: dict[int, Estimate] = {}
        while True:
            speedups = {load: found.value for load, found in estimates.items()}
            load = next_concurrency(wanted, speedups, self._load.most_concurrency)
            if load is not None and len(cells) >= len(wanted) + extra_tiers:
                load = None
            if load is None and self.budget.deadline_s is not None:
                load = to_repeat(estimates, {known: len(listed) for known, listed in cells.items()})
            if load is None or (cells and not self._allowed(LoadLevel(load), len(chosen))):
                break
            listed = cells.setdefault(load, [])
            tier = sum(len(one) for one in cells.values())
            listed.append(await self.cell(LoadLevel(load), chosen, arms, tier, len(listed)))
            records = [record for cell in listed for record in cell.records]
            estimates[load] = rate_estimate(pairs_of(records)) or Estimate(0.0, 0.0, 1)
        return tuple(cell for load in sorted(cells) for cell in cells[load])

    async def probe(self, draft_length: int) -> Cell | None:
        """The first tier once more with shorter drafts, which tells what a drafted token costs; None out of time."""
        level = LoadLevel(self._load.settings.concurrency[0])
        arms = ArmSettings(draft_length, served=True)
        return await self.cell(level, TWO_ARMS, arms, 0) if self._allowed(level, len(TWO_ARMS)) else None

    async def rates(self, arms: ArmSettings) -> tuple[Cell, ...]:
        """The recipe's open-loop tiers, as many as the time allows."""
        chosen = (*TWO_ARMS, Arm.POLICY) if arms.served or arms.policy is not None else TWO_ARMS
        cells = []
        for tier, rate in enumerate(self._load.settings.request_rate):
            level = LoadLevel(request_rate=rate, arrival=self._load.settings.arrival_pattern)
            if self._allowed(level, len(chosen)):
                cells.append(await self.cell(level, chosen, arms, tier))
        return tuple(cells)

    async def prove(self, arms: ArmSettings, levels: Sequence[LoadLevel]) -> tuple[Cell, ...]:
        """All three arms at these loads, as many as the time allows, in order of load."""
        chosen = (*TWO_ARMS, Arm.POLICY)
        cells = []
        for tier, level in enumerate(levels):
            if self._allowed(level, len(chosen)):
                cells.append(await self.cell(level, chosen, arms, tier))
        return tuple(sorted(cells, key=lambda cell: cell.records[0].concurrency))

    def _allowed(self, level: LoadLevel, arms: int) -> bool:
        if self.budget.allows(level, self._load, arms):
            return True
        self._show(f"{level.words}: left out, the time is over")
        return False

    async def cell(
        self, level: LoadLevel, arms: tuple[Arm, ...], settings: ArmSettings, tier: int, repeat: int = 0
    ) -> Cell:
        """One level, from disk when it is there, whole, and may be used; a `repeat` has turns of its own."""
        load = self._load
        prompts = tier_prompts(load.prompts, tier, load.level_size(level))
        policy = settings.policy if Arm.POLICY in arms else None
        parameters = load.cell_parameters(level, prompts, arms, policy)
        if settings.served and settings.draft_length != load.draft_length:
            parameters["draft_length"] = settings.draft_length
        if repeat:
            parameters["repeat"] = repeat
        found = self._store.load(load.repository_key, parameters) if self._reuse else None
        if found is not None and all(record.timeline.outcome is Outcome.SUCCESS for record in found.records):
            self._show(f"{level.words}: have, measured {found.facts.measured_at}")
            self._learn(level, found)
            return found
        await self._warm_up()
        # The answer says nothing new while no load is known: an estimate would be made up.
        cost = self.budget.cost_s(level, load, len(arms))
        words = f", at most about {cost:.0f} s" if cost else ""
        self._show(f"{level.words}: {len(prompts)} requests in each of {len(arms)} arms{words}")
        salt = digest({**parameters, "measured_at": now_utc()})
        client = LoadClient(self._endpoint, load.settings, settings, salt, load.metrics_url)
        plan = blocks(prompts, load.turn_size(level), tier, arms, first=repeat * TURNS_OF_A_REPEAT)
        ran = await client.run(level, plan)
        cell = self._store.save(
            load.repository_key,
            parameters,
            ran.records,
            now_utc(),
            ran.client_cpu_cores,
            ran.client_lag_ms,
            ran.kv_cache_share,
        )
        self._learn(level, cell)
        return cell

    def _learn(self, level: LoadLevel, cell: Cell) -> None:
        seconds = max(record.sent_s + record.timeline.end_s for record in cell.records)
        tokens = sum(record.timeline.tokens for record in cell.records)
        if level.arrival is Arrival.CLOSED and tokens:
            self.budget.tokens_per_s[level.concurrency] = tokens / seconds

    async def _warm_up(self) -> None:
        """Both arms once before the first measurement."""
        if self._warm:
            return
        self._warm = True
        rate = 0.0
        for prompt in WARM_UP_PROMPTS:
            for draft_tokens in (None, 0):
                request = EntryRequest(prompt.chat_json(), WARM_UP_TOKENS, chat=True, num_draft_tokens=draft_tokens)
                timeout_s = self._load.settings.request_timeout_s
                timeline = await self._endpoint.generate(request.call(), timeout_s=timeout_s)
                rate = timeline.tokens / timeline.end_s
        self._show(f"warm: {rate:.0f} tokens/s alone")
        if rate and not self.budget.tokens_per_s:
            self.budget.tokens_per_s[1] = rate
