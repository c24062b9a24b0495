"""The load of a soak, and what was wrong with the answers."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from benchmarks.soak.clients import Ask, Entry, Got, hang_up, read_stream, whole
from benchmarks.soak.memory import resident_bytes, slope_per_minute

PROMPTS = (
    "The quick brown fox jumps over",
    "Żółw spał pod dębem, a kot",
    "Привет, как дела сегодня",
    "你好,今天的天气",
    "こんにちは、世界の",
    "مرحبا بالعالم كيف",
    "नमस्ते दुनिया, आज",
    "🙂🙃🚀 emoji and more 👩‍👩‍👧 emoji",
    "def add(a, b):\n    return a + b\n\ndef",
    "one two three one two three one two",
)
SHOWN = 5
SAMPLE_S = 2.0
IDLE_S = 30.0
TURN_S = 240.0
# What a server may grow by in the later half of a soak, when caches and arenas are full.
SLOPE_BYTES_PER_MINUTE = 4 << 20


@dataclass(frozen=True)
class Plan:
    """How long and how much; `seed` decides who cancels when."""

    duration_s: float
    streams: int
    max_tokens: int
    seed: int


@dataclass
class Outcome:
    """Counts, memory, and what was wrong; empty `problems` is a soak that was passed."""

    duration_s: float = 0.0
    requests: int = 0
    tokens: int = 0
    ways: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    drafted: float = 0.0
    accepted: float = 0.0
    memory_begin_bytes: int = 0
    memory_end_bytes: int = 0
    memory_slope_bytes_per_minute: float = 0.0
    idle_after_s: float = 0.0
    problems: list[str] = field(default_factory=list)


class Load:
    """Workers that ask, each in a random way, until the time is over."""

    def __init__(self, entry: Entry, plan: Plan, truth: Mapping[str, Got]) -> None:
        self._entry = entry
        self._plan = plan
        self._truth = truth
        self._ways: Counter[str] = Counter()
        self.outcome = Outcome()

    async def work(self, number: int, until: float) -> None:
        """One worker: request after request."""
        dice = random.Random(f"{self._plan.seed} {number}")
        async with grpc.aio.insecure_channel(self._entry.grpc_url, options=[("draftyard.worker", number)]) as channel:
            turn = 0
            while time.monotonic() < until:
                turn += 1
                try:
                    await asyncio.wait_for(self._turn(channel, dice, f"{number}-{turn}"), TURN_S)
                except asyncio.TimeoutError:
                    self._wrong(f"no answer within {TURN_S:g} s")
                except (OSError, grpc.RpcError, ValueError) as error:
                    self._wrong(f"{type(error).__name__}: {error}")

    async def _turn(self, channel: grpc.aio.Channel, dice: random.Random, name: str) -> None:
        prompt = dice.choice(PROMPTS)
        draft_tokens = dice.choice((None, None, None, 0, 2))
        ask = Ask(prompt, self._plan.max_tokens, draft_tokens, dice.random() < 0.8)
        way = dice.choices(("read", "cancel", "close", "hang up"), (6, 2, 1, 1))[0]
        events = dice.randint(1, 12)
        self._ways[way] += 1
        if way == "read":
            got = await read_stream(channel, ask, name)
        elif way == "cancel":
            got = await read_stream(channel, ask, name, events)
        elif way == "close":
            async with grpc.aio.insecure_channel(self._entry.grpc_url) as own:
                got = await read_stream(own, ask, name, events)
        else:
            got = await hang_up(self._entry, ask, events)
        self._check(ask, got, way == "read")

    def _check(self, ask: Ask, got: Got, complete: bool) -> None:
        """A whole answer is the truth, a broken-off one its beginning."""
        truth, outcome = self._truth[ask.prompt], self.outcome
        outcome.requests += 1
        outcome.tokens += len(got.token_ids)
        if got.error:
            if "try again later" in got.error or "queue" in got.error:
                outcome.refused += 1
            else:
                self._wrong(f"{ask.prompt!r}: {got.error}")
        elif complete and (got.token_ids, got.text, got.finish) != (truth.token_ids, truth.text, truth.finish):
            self._wrong(f"{ask.prompt!r}: {got.text!r} is not {truth.text!r}")
        elif not truth.text.startswith(got.text) or got.token_ids != truth.token_ids[: len(got.token_ids)]:
            self._wrong(f"{ask.prompt!r}: {got.text!r} does not begin {truth.text!r}")

    def _wrong(self, words: str) -> None:
        if len(self.outcome.problems) < SHOWN:
            self.outcome.problems.append(words)

    def count_ways(self) -> None:
        """Put the ways of all workers into the outcome."""
        self.outcome.ways = dict(self._ways)


async def soak(entry: Entry, plan: Plan, pids: Sequence[int]) -> Outcome:
    """Learn the truth by plain decoding, load the server, wait until it is idle, and ask again."""
    truth = {prompt: await _plain(entry, prompt, plan.max_tokens) for prompt in PROMPTS}
    load = Load(entry, plan, truth)
    begin = time.monotonic()
    workers = [load.work(number, begin + plan.duration_s) for number in range(plan.streams)]
    samples: list[tuple[float, int]] = []
    sampler = asyncio.create_task(_sample(pids, samples))
    await asyncio.gather(*workers)
    sampler.cancel()
    outcome = load.outcome
    load.count_ways()
    outcome.duration_s = time.monotonic() - begin
    outcome.idle_after_s = await _idle(entry, outcome)
    outcome.drafted = entry.metric("draftyard_spec_decode_num_draft_tokens_total")
    outcome.accepted = entry.metric("draftyard_spec_decode_num_accepted_tokens_total")
    outcome.memory_begin_bytes, outcome.memory_end_bytes = samples[len(samples) // 2][1], samples[-1][1]
    outcome.memory_slope_bytes_per_minute = slope_per_minute(samples)
    if plan.duration_s >= 120 and outcome.memory_slope_bytes_per_minute > SLOPE_BYTES_PER_MINUTE:
        outcome.problems.append(f"memory grows by {outcome.memory_slope_bytes_per_minute / 1e6:.1f} MB a minute")
    await _slots(entry, plan, truth, outcome)
    return outcome


async def _plain(entry: Entry, prompt: str, max_tokens: int) -> Got:
    got = await whole(entry, Ask(prompt, max_tokens, 0, False), "plain")
    if got.error:
        raise RuntimeError(f"{prompt!r}: {got.error}")
    return got


async def _sample(pids: Sequence[int], samples: list[tuple[float, int]]) -> None:
    begin = time.monotonic()
    while True:
        samples.append((time.monotonic() - begin, resident_bytes(pids)))
        await asyncio.sleep(SAMPLE_S)


async def _idle(entry: Entry, outcome: Outcome) -> float:
    """Seconds until nothing is in flight any more."""
    begin = time.monotonic()
    while entry.metric("draftyard_requests_in_flight") != 0:
        if time.monotonic() - begin > IDLE_S:
            outcome.problems.append(f"requests are in flight {IDLE_S:g} s after the last client went")
            break
        await asyncio.sleep(0.1)
    return time.monotonic() - begin


async def _slots(entry: Entry, plan: Plan, truth: Mapping[str, Got], outcome: Outcome) -> None:
    """As many at once as during the soak, none refused: a slot that was lost would be missing now."""
    asks = [Ask(PROMPTS[number % len(PROMPTS)], 8, None) for number in range(plan.streams)]
    answers = await asyncio.gather(*(whole(entry, ask, f"slot-{number}") for number, ask in enumerate(asks)))
    for ask, got in zip(asks, answers, strict=True):
        if got.error or got.token_ids != truth[ask.prompt].token_ids[: len(got.token_ids)]:
            outcome.problems.append(f"after the soak: {ask.prompt!r}: {got.error or got.text!r}")
            return
