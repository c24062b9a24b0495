"""Random submits, cancels, steps and bad requests: nothing leaks, each request ends once, each text is its own."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.engine.medusa_engines import full_tree, random_heads, write_medusa_engine
from tests.engine.tiny_engines import DRAFT_TARGET, NGRAM, Sizes, loaded, random_llama, run, tokens_of, write_engine
from transformers import LlamaForCausalLM

from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.errors import Failure
from draftyard.nouns.generation import FinishReason, GenerationEvent, GenerationRequest, SamplingParameters

VOCABULARY, LONGEST = 16, 12
# Prompts are longer than what a busy pass has room for, and the cache holds about three sequences.
SIZES = Sizes(max_batch_size=4, max_input_len=20, max_seq_len=36, max_num_tokens=18, kv_cache_tokens=110)


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    return random_llama(
        seed, vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1
    )


def ngram_engine(path: Path) -> Path:
    return write_engine(path, tiny_llama(), sizes=SIZES, speculator={**NGRAM, "max_draft_len": 6})


def draft_engine(path: Path) -> Path:
    return write_engine(path, tiny_llama(), sizes=SIZES, speculator=DRAFT_TARGET, draft=tiny_llama(seed=3))


def medusa_engine(path: Path) -> Path:
    heads = random_heads(3, hidden=8, vocabulary=VOCABULARY)
    return write_medusa_engine(path, tiny_llama(), heads, full_tree(4, 2, 1)[:9], sizes=SIZES)


@dataclass
class Ledger:
    """What has been asked of an engine and what came back."""

    engine: ReferenceEngine
    asked: dict[str, GenerationRequest] = field(default_factory=dict)
    open_ids: list[str] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, FinishReason] = field(default_factory=dict)

    def submit(self, request: GenerationRequest) -> None:
        self.engine.submit(request)
        self.asked[request.request_id] = request
        self.tokens[request.request_id] = []
        self.open_ids.append(request.request_id)

    def step(self) -> None:
        for event in self.engine.step():
            self._take(event)

    def check(self) -> None:
        """Slots and reserved tokens are those of the running sequences, at every moment."""
        engine, status = self.engine, self.engine.status()
        running = list(engine._running.values())
        slots = {one.slot for one in running}
        assert len(slots) == len(running)
        assert slots <= set(range(SIZES.max_batch_size))
        assert status.kv_tokens_used == sum(one.reserved_tokens for one in running) <= status.kv_tokens_total
        assert (status.active, status.waiting) == (len(running), len(engine._waiting))
        assert all(one.cached <= len(one.tokens) <= one.reserved_tokens for one in running)

    def _take(self, event: GenerationEvent) -> None:
        name = event.request_id
        assert name in self.open_ids, "an event after the end"
        assert len(event.token_ids) <= 1 + max(self.asked[name].max_draft_len or 9, 0)
        self.tokens[name].extend(event.token_ids)
        if event.finish_reason is not None:
            self.open_ids.remove(name)
            self.ends[name] = event.finish_reason


def random_request(chance: random.Random, name: str, prompts: list[tuple[int, ...]]) -> GenerationRequest:
    sampled = SamplingParameters(top_k=0, temperature=chance.choice((0.5, 2.0)), seed=chance.randrange(99))
    return GenerationRequest(
        name,
        chance.choice(prompts),
        chance.randint(1, LONGEST),
        end_ids=(chance.randrange(VOCABULARY),) if chance.random() < 0.5 else (),
        sampling=sampled if chance.random() < 0.3 else SamplingParameters(),
        max_draft_len=chance.choice((None, 0, 1, 3, 99)),
    )


def bad_request(chance: random.Random, name: str) -> GenerationRequest:
    good = GenerationRequest(name, (1, 2), 3)
    return chance.choice(
        (
            replace(good, input_ids=()),
            replace(good, input_ids=(VOCABULARY,)),
            replace(good, input_ids=(1,) * 21),
            replace(good, max_tokens=99),
            replace(good, max_draft_len=-1),
            replace(good, sampling=SamplingParameters(temperature=float("nan"))),
        )
    )


def act(chance: random.Random, ledger: Ledger, number: int, prompts: list[tuple[int, ...]]) -> None:
    dice = chance.random()
    if dice < 0.2 and len(ledger.open_ids) < 30:
        ledger.submit(random_request(chance, str(number), prompts))
    elif dice < 0.24:
        with pytest.raises(Failure):
            ledger.submit(bad_request(chance, str(number)))
    elif dice < 0.26 and ledger.open_ids:
        ledger.engine.cancel(chance.choice(ledger.open_ids))
        ledger.engine.cancel("unknown")
    elif dice < 0.28 and (living := [name for name in ledger.open_ids if name in ledger.engine._running]):
        with pytest.raises(Failure, match="in use"):
            ledger.engine.submit(GenerationRequest(chance.choice(living), (1,), 1))
    else:
        ledger.step()


def expected_text(request: GenerationRequest, alone: dict[tuple[int, ...], list[int]]) -> list[int]:
    """The plain text of the prompt up to the request's length or its end id."""
    text = alone[request.input_ids][: request.max_tokens]
    ends = [place for place, token in enumerate(text) if token in request.end_ids]
    return text[: ends[0] + 1] if ends else text


@pytest.mark.parametrize(
    ("make", "events"),
    [(medusa_engine, 10_000), (draft_engine, 3_000), (ngram_engine, 3_000)],
    ids=["medusa", "draft_target", "ngram"],
)
def test_accounts_are_right_after_every_random_event(tmp_path: Path, make: Callable[[Path], Path], events: int) -> None:
    chance = random.Random(4)
    prompts = [tuple(chance.choices(range(VOCABULARY), k=chance.randint(1, 20))) for _ in range(40)]
    plain = loaded(write_engine(tmp_path / "plain", tiny_llama(), sizes=SIZES))
    alone = {prompt: tokens_of(run(plain, [GenerationRequest("a", prompt, LONGEST)])["a"]) for prompt in prompts}
    ledger = Ledger(loaded(make(tmp_path / "engine")))
    for number in range(events):
        act(chance, ledger, number, prompts)
        ledger.check()
    while ledger.engine.has_work:
        ledger.step()
    ledger.check()
    assert not ledger.open_ids
    assert set(ledger.ends) == set(ledger.asked)
    assert ledger.engine.status().kv_tokens_used == ledger.engine.status().active == 0
    compare_texts(ledger, alone)
    for number in range(SIZES.max_batch_size):
        ledger.submit(GenerationRequest(f"last {number}", (1,), 9))
    ledger.step()
    assert ledger.engine.status().active == SIZES.max_batch_size, "every slot came back"


def compare_texts(ledger: Ledger, alone: dict[tuple[int, ...], list[int]]) -> None:
    """Whole texts of greedy requests that came to their end, leading parts of cancelled ones."""
    whole = 0
    for name, request in ledger.asked.items():
        found, cancelled = ledger.tokens[name], ledger.ends[name] is FinishReason.CANCELLED
        assert len(found) <= request.max_tokens
        if request.sampling.greedy:
            expected = expected_text(request, alone)
            assert found == (expected[: len(found)] if cancelled else expected), (name, request)
            whole += not cancelled
    assert whole > len(ledger.asked) / 3
    assert FinishReason.CANCELLED in ledger.ends.values()
