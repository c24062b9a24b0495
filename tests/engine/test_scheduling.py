"""Who gets what of each step: drafts by load, shared beginnings of prompts, first come first served, no long gaps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.oracle_proposer import OracleProposer
from tests.engine.tiny_engines import NGRAM, Sizes, loaded, random_llama, random_prompts, run, tokens_of, write_engine
from transformers import LlamaForCausalLM

from draftyard.engine.reference import ReferenceEngine
from draftyard.engine.runs import Run
from draftyard.nouns.generation import GenerationEvent, GenerationRequest
from draftyard.nouns.speculation_schedule import ScheduleStep, SpeculationSchedule

REPEATING = (5, 6, 7, 8) * 6


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return random_llama()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, model: LlamaForCausalLM) -> Path:
    return write_engine(tmp_path_factory.mktemp("scheduling") / "engine", model)


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory, model: LlamaForCausalLM) -> Path:
    return write_engine(tmp_path_factory.mktemp("scheduling") / "ngram", model, speculator=NGRAM)


def watched(engine: ReferenceEngine) -> list[list[Run]]:
    """The runs of every pass, as they happen."""
    passes: list[list[Run]] = []
    forward = engine._decoder.forward

    def noted(runs: list[Run]) -> torch.Tensor:
        passes.append(list(runs))
        return forward(runs)

    engine._decoder.forward = noted
    return passes


def ask(name: str, prompt: tuple[int, ...], max_tokens: int, max_draft_len: int | None = None) -> GenerationRequest:
    return GenerationRequest(name, prompt, max_tokens, max_draft_len=max_draft_len)


def test_drafts_get_shorter_with_the_load_and_longer_again(drafting: Path) -> None:
    engine = loaded(drafting)
    engine._schedule = SpeculationSchedule((ScheduleStep(2, 2), ScheduleStep(3, 0)))
    passes = watched(engine)
    requests = [ask(str(place), REPEATING, 12 + 20 * place) for place in range(3)]
    found = run(engine, requests)
    longest = {1: 0, 2: 0, 3: 0}
    for runs in passes[1:]:
        longest[len(runs)] = max(longest[len(runs)], *(len(one.token_ids) - 1 for one in runs))
    assert longest == {1: 4, 2: 2, 3: 0}
    plain = run(loaded(drafting), [replace(one, max_draft_len=0) for one in requests])
    assert {name: tokens_of(events) for name, events in found.items()} == {
        name: tokens_of(events) for name, events in plain.items()
    }


def test_what_a_request_asks_for_holds_below_the_schedules_limit(drafting: Path) -> None:
    engine = loaded(drafting)
    engine._schedule = SpeculationSchedule((ScheduleStep(1, 2),))
    for wish, longest in ((None, 2), (3, 2), (1, 1), (0, 0)):
        passes = watched(engine)
        run(engine, [ask("a", REPEATING, 40, wish)])
        assert max(len(one.token_ids) - 1 for runs in passes[1:] for one in runs) == longest


def test_requests_with_and_without_drafts_share_a_pass(drafting: Path) -> None:
    engine = loaded(drafting)
    passes = watched(engine)
    found = run(engine, [ask("drafts", REPEATING, 40), ask("plain", REPEATING, 40, 0)])
    widths = [sorted(len(one.token_ids) for one in runs) for runs in passes[1:] if len(runs) == 2]
    assert any(width[0] == 1 and width[1] > 1 for width in widths)
    assert all(width[0] == 1 for width in widths)
    assert tokens_of(found["drafts"]) == tokens_of(found["plain"])


def test_a_schedule_is_part_of_the_engine_directory(tmp_path: Path, model: LlamaForCausalLM) -> None:
    path = write_engine(tmp_path / "engine", model, speculator=NGRAM)
    config = (path / "config.json").read_text()
    steps = '"draft_schedule": [{"running": 1, "max_draft_len": 0}], '
    (path / "config.json").write_text(config.replace('"kv_cache_tokens"', steps + '"kv_cache_tokens"'))
    engine = loaded(path)
    passes = watched(engine)
    run(engine, [ask("a", REPEATING, 20)])
    assert all(len(one.token_ids) == 1 for runs in passes[1:] for one in runs)


def test_a_conversation_is_not_read_twice_and_gives_the_same_text(directory: Path) -> None:
    engine, fresh = loaded(directory), loaded(directory)
    first = random_prompts(1, seed=4, lengths=(30, 30))[0]
    answer = tokens_of(run(engine, [ask("one", tuple(first), 20)])["one"])
    second = (*first, *answer, 11, 12, 13)
    passes = watched(engine)
    found = run(engine, [ask("two", second, 40)])["two"]
    assert len(passes[0][0].token_ids) == len(second) - (len(first) + 19)
    assert engine.status().prefix_tokens_reused == len(first) + 19
    assert tokens_of(found) == tokens_of(run(fresh, [ask("two", second, 40)])["two"])
    assert fresh.status().prefix_tokens_reused == 0


def test_a_shared_beginning_is_read_once_while_its_first_reader_still_runs(directory: Path) -> None:
    engine = loaded(directory)
    shared = tuple(random_prompts(1, seed=5, lengths=(50, 50))[0])
    engine.submit(ask("first", (*shared, 3), 30))
    engine.step()
    passes = watched(engine)
    requests = [ask(str(tail), (*shared, 20 + tail), 10) for tail in range(3)]
    for request in requests:
        engine.submit(request)
    found: dict[str, list[GenerationEvent]] = {}
    while engine.has_work:
        for event in engine.step():
            found.setdefault(event.request_id, []).append(event)
    read = [one for one in passes[0] if len(one.token_ids) == 1 and one.start == 50]
    assert len(read) == 3
    assert engine.status().prefix_tokens_reused == 150
    expected = run(loaded(directory), requests)
    assert all(tokens_of(found[name]) == tokens_of(expected[name]) for name in expected)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_reuse_changes_no_token_whatever_came_before(directory: Path, drafting: Path, data: st.DataObject) -> None:
    """Prompts over few tokens share beginnings by chance, drafts and cancellations come between."""
    engine = loaded(data.draw(st.sampled_from([directory, drafting])))
    for number in range(data.draw(st.integers(2, 10))):
        prompt = data.draw(st.lists(st.integers(5, 6), min_size=1, max_size=12))
        engine.submit(ask(str(number), tuple(prompt), data.draw(st.integers(1, 12))))
        for _ in range(data.draw(st.integers(0, 3))):
            engine.step()
        if data.draw(st.integers(0, 3)) == 0:
            engine.cancel(str(data.draw(st.integers(0, number))))
    while engine.has_work:
        engine.step()
    asked = ask("asked", tuple(data.draw(st.lists(st.integers(5, 6), min_size=1, max_size=12))), 20)
    assert tokens_of(run(engine, [asked])["asked"]) == tokens_of(run(loaded(directory), [asked])["asked"])


def test_the_tail_of_an_unkept_tree_is_not_reused(tmp_path: Path, model: LlamaForCausalLM) -> None:
    """A sequence that ends inside an accepted tree leaves rows behind that are no chain."""
    path = write_engine(tmp_path / "engine", model, speculator={**NGRAM, "max_draft_len": 12})
    prompt = tuple(random_prompts(1, seed=6, lengths=(12, 12))[0])
    plain = tokens_of(run(loaded(path), [ask("a", prompt, 30, 0)])["a"])
    longer = (*prompt, *plain[:6], 9)
    expected = tokens_of(run(loaded(path), [ask("b", longer, 20, 0)])["b"])
    engine, accepted = loaded(path), 0
    for seed in range(8):
        engine._proposer = OracleProposer({"a": plain}, 96, seed=seed, taps=())
        assert tokens_of(run(engine, [ask("a", prompt, 6)])["a"]) == plain[:6]
        accepted += engine._proposer.accepted
        reused = engine.status().prefix_tokens_reused
        assert tokens_of(run(engine, [ask("b", longer, 20, 0)])["b"]) == expected
        assert engine.status().prefix_tokens_reused > reused
        while engine._slots:  # forget what the slots hold
            engine._slots.take_blank()
        for slot in range(engine.limits.max_batch_size):
            engine._slots.give_back(slot, ())
    assert accepted > 8


def test_decoding_goes_on_while_a_long_prompt_is_read(tmp_path: Path, model: LlamaForCausalLM) -> None:
    engine = loaded(write_engine(tmp_path / "engine", model, speculator=NGRAM))
    engine.limits = replace(engine.limits, prefill_chunk_tokens=16)
    engine.submit(ask("talks", REPEATING, 60, 0))
    engine.step()
    passes = watched(engine)
    engine.submit(ask("long", tuple(random_prompts(1, lengths=(120, 120))[0]), 5))
    steps: list[tuple[GenerationEvent, ...]] = []
    while not any(event.request_id == "long" for step in steps for event in step):
        steps.append(engine.step())
    assert len(steps) == 8
    assert all(any(event.request_id == "talks" for event in step) for step in steps)
    assert all(sum(len(one.token_ids) for one in runs) <= 16 + 1 for runs in passes)


def test_a_prompt_alone_is_read_in_one_piece(directory: Path) -> None:
    engine = loaded(directory)
    passes = watched(engine)
    run(engine, [ask("long", tuple(random_prompts(1, lengths=(120, 120))[0]), 2)])
    assert [len(one.token_ids) for one in passes[0]] == [120]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 30), st.integers(0, 4)), min_size=1, max_size=20),
    st.integers(1, 4),
    st.integers(3, 40),
)
def test_requests_enter_in_order_within_the_budget_and_all_come_to_an_end(
    drafting: Path, wishes: list[tuple[int, int, int]], slots: int, tokens_a_pass: int
) -> None:
    """Also the huge ones: nobody overtakes, and what runs ends, so none is starved and none blocks for ever."""
    engine = loaded(drafting)
    engine.limits = replace(engine.limits, kv_cache_tokens=150, max_num_tokens=max(tokens_a_pass, slots + 1))
    while len(engine._slots) > slots:
        engine._slots.take_blank()
    entered: list[str] = []
    ended: set[str] = set()
    pending = [
        ask(str(place), tuple(5 + (place + at) % 90 for at in range(count)), out)
        for place, (count, out, _) in enumerate(wishes)
    ]
    waits = [wait for _, _, wait in wishes]
    # Every pass gives a running sequence a token or reads a piece of a prompt: so many steps are enough for all.
    for _ in range(sum(count + out + wait + 1 for count, out, wait in wishes)):
        while pending and waits[0] <= 0:
            waits.pop(0)
            engine.submit(pending.pop(0))
        if waits:
            waits[0] -= 1
        events = engine.step()
        entered.extend(name for name in engine._running if name not in entered)
        entered.extend(event.request_id for event in events if event.request_id not in entered)
        ended.update(event.request_id for event in events if event.finish_reason is not None)
        assert engine.status().kv_tokens_used <= 150
    assert ended == {str(place) for place in range(len(wishes))}
    assert entered == [str(place) for place in range(len(wishes))]
    assert engine.status().kv_tokens_used == 0


def test_a_small_prompt_is_read_beside_sequences_that_draft_all_they_can(
    tmp_path: Path, model: LlamaForCausalLM
) -> None:
    engine = loaded(write_engine(tmp_path / "engine", model, speculator=NGRAM, sizes=Sizes(max_num_tokens=6)))
    engine.submit(ask("drafts", REPEATING, 60))
    while not engine._running or next(iter(engine._running.values())).prefilling:
        engine.step()
    engine.submit(ask("small", (3, 4, 5), 2))
    names: list[str] = []
    for _ in range(4):
        names.extend(event.request_id for event in engine.step())
    assert "small" in names
