"""The engine as a batching server: joining, leaving, cancelling, limits, ends, seeds, statistics, speculation."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_engines import (
    DRAFT_TARGET,
    NGRAM,
    Sizes,
    loaded,
    random_llama,
    random_prompts,
    run,
    tokens_of,
    write_engine,
)
from transformers import LlamaForCausalLM

from draftyard.engine.acceptance import Draft
from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.errors import Failure
from draftyard.nouns.generation import FinishReason, GenerationEvent, GenerationRequest, SamplingParameters

SAMPLED = SamplingParameters(temperature=0.9, top_k=0, top_p=0.9, seed=5)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return random_llama()


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory, model: LlamaForCausalLM) -> dict[str, Path]:
    """One engine of each speculator; the draft is the target with some noise, so that it is right now and then."""
    root = tmp_path_factory.mktemp("engines")
    draft = random_llama()
    generator = torch.Generator().manual_seed(1)
    for value in draft.parameters():
        value.data += torch.randn(value.shape, generator=generator) * 0.02
    return {
        "none": write_engine(root / "none", model),
        "ngram": write_engine(root / "ngram", model, speculator=NGRAM),
        "draft_target": write_engine(root / "draft_target", model, speculator=DRAFT_TARGET, draft=draft),
    }


@pytest.fixture
def plain(directories: dict[str, Path]) -> ReferenceEngine:
    return loaded(directories["none"])


def ask(name: str, prompt: list[int], max_tokens: int = 20, **fields: object) -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt), max_tokens, **fields)


def last(events: list[GenerationEvent]) -> GenerationEvent:
    assert [event.finish_reason is None for event in events[:-1]] == [True] * (len(events) - 1)
    assert events[-1].finish_reason is not None
    return events[-1]


@pytest.mark.parametrize("kind", ["ngram", "draft_target"])
def test_greedy_text_with_speculation_is_the_plain_text(directories: dict[str, Path], kind: str) -> None:
    """Three rounds on the same engine, in changing order and company: state must not leak from one to the next."""
    prompts = [prompt * 2 for prompt in random_prompts(12, lengths=(4, 20))]
    plain = run(loaded(directories["none"]), [ask(str(place), prompt, 120) for place, prompt in enumerate(prompts)])
    engine, drafted = loaded(directories[kind]), 0
    for seed in range(3):
        order = list(enumerate(prompts))
        random.Random(seed).shuffle(order)
        events = run(engine, [ask(str(place), prompt, 120) for place, prompt in order])
        for place, _ in order:
            assert tokens_of(events[str(place)]) == tokens_of(plain[str(place)])
            drafted += last(events[str(place)]).statistics.drafted
    assert drafted > 100


@pytest.mark.parametrize("kind", ["ngram", "draft_target"])
def test_penalised_greedy_text_with_speculation_is_the_plain_text(directories: dict[str, Path], kind: str) -> None:
    sampling = SamplingParameters(repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2, min_tokens=10)
    fields: dict[str, object] = {"sampling": sampling, "bad_sequences": ((7,), (3, 4)), "end_ids": (11, 12, 13)}
    requests = [ask(str(place), prompt * 2, 60, **fields) for place, prompt in enumerate(random_prompts(8))]
    plain, speculative = run(loaded(directories["none"]), requests), run(loaded(directories[kind]), requests)
    for request in requests:
        tokens = tokens_of(plain[request.request_id])
        assert tokens_of(speculative[request.request_id]) == tokens
        assert 7 not in tokens
        assert len(tokens) >= 10


def test_one_event_per_step_the_first_from_the_prompt(directories: dict[str, Path]) -> None:
    engine = loaded(directories["draft_target"])
    events = run(engine, [ask("a", random_prompts(1)[0], 60)])["a"]
    statistics = last(events).statistics
    assert len(events[0].token_ids) == 1
    assert all(1 <= len(event.token_ids) <= 5 for event in events[1:])
    assert statistics.steps == len(events) - 1
    assert sum(len(event.token_ids) for event in events) == 60 == 1 + statistics.steps + statistics.accepted
    assert statistics.acceptance_length == pytest.approx(59 / statistics.steps)
    assert sum(statistics.accepted_by_position) == statistics.accepted > 0
    assert list(statistics.accepted_by_position) == sorted(statistics.accepted_by_position, reverse=True)


def test_draft_length_is_the_requests_and_stops_with_the_budget(directories: dict[str, Path]) -> None:
    engine, prompt = loaded(directories["draft_target"]), random_prompts(1)[0]
    for wish, longest in ((None, 4), (2, 2), (0, 0), (9, 4)):
        statistics = last(run(engine, [ask("a", prompt, 40, max_draft_len=wish)])["a"]).statistics
        assert len(statistics.drafted_by_position) <= longest
        assert (statistics.drafted > 0) == (longest > 0)
    assert last(run(engine, [ask("a", prompt, 2)])["a"]).statistics.drafted == 0
    assert last(run(engine, [ask("a", prompt, 3)])["a"]).statistics.drafted == 1


@pytest.mark.parametrize("draft_vocabulary", [80, 96, 128])
def test_a_draft_with_other_padding_rows_is_served(
    tmp_path: Path, directories: dict[str, Path], draft_vocabulary: int, model: LlamaForCausalLM
) -> None:
    """Rows beyond the smaller vocabulary are padding: never proposed, and no reason to refuse or to break."""
    draft = random_llama(vocab_size=draft_vocabulary)
    path = write_engine(tmp_path / "engine", model, speculator=DRAFT_TARGET, draft=draft)
    requests = [ask(str(place), prompt, 40) for place, prompt in enumerate([*random_prompts(3), [95, 1, 2]])]
    requests.append(ask("sampled", [1, 2, 3], 40, sampling=SAMPLED))
    plain, speculative = run(loaded(directories["none"]), requests), run(loaded(path), requests)
    for request in requests[:-1]:
        assert tokens_of(speculative[request.request_id]) == tokens_of(plain[request.request_id])
    assert last(speculative["sampled"]).finish_reason is FinishReason.LENGTH


def test_logits_that_are_no_numbers_end_the_sequence_with_an_error(tmp_path: Path) -> None:
    broken = random_llama()
    broken.model.norm.weight.data[:] = float("nan")
    events = run(loaded(write_engine(tmp_path / "engine", broken)), [ask("a", [1, 2], 3)])["a"]
    assert last(events).finish_reason is FinishReason.ERROR
    assert "numbers" in events[-1].error


class FixedDrafts:
    """A speculator that proposes what the test says, once."""

    taps: tuple[int, ...] = ()

    def __init__(self, engine: ReferenceEngine, tokens: tuple[int, ...]) -> None:
        self._inner = engine._proposer
        self._tokens = tokens

    def propose(self, sequences: list[object], most: list[int]) -> list[object]:
        return [Draft(self._tokens[:room]) for room in most]

    def settle(self, *arguments: object) -> None:
        pass

    def forget(self, sequence: object) -> None:
        pass


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_what_is_no_number_does_not_outlive_its_sequence(tmp_path: Path, model: LlamaForCausalLM, end: str) -> None:
    """Slots are read together and behind their ends: a sequence that broke leaves nothing there."""
    broken = random_llama()
    broken.load_state_dict(model.state_dict())
    broken.model.embed_tokens.weight.data[90] = float("nan")
    sizes = Sizes(max_batch_size=2, max_num_tokens=20)
    engine = loaded(write_engine(tmp_path / "engine", broken, sizes=sizes))
    good = [GenerationRequest(name, (5, 9, 3), 6) for name in ("one", "two")]
    expected = [tokens_of(run(engine, [request])[request.request_id]) for request in good]
    if end == "failed":
        events = run(engine, [GenerationRequest("breaks", (5,) * 10 + (90,) * 10, 6)])
        assert events["breaks"][-1].finish_reason is FinishReason.ERROR
    else:
        engine.submit(GenerationRequest("breaks", (90,) * 40, 6))
        engine.step()
        engine.cancel("breaks")
        engine.step()
    found = run(engine, good)
    assert [tokens_of(found[request.request_id]) for request in good] == expected


def test_nothing_behind_an_end_id_is_emitted_or_counted(directories: dict[str, Path]) -> None:
    """The block [d1, END, d3, d4, bonus], all of it right: two tokens are emitted, two drafts accepted."""
    prompt = random_prompts(1)[0]
    text = tokens_of(run(loaded(directories["none"]), [ask("a", prompt, 12)])["a"])
    assert text[2] not in text[:2]
    engine = loaded(directories["ngram"])
    engine._proposer = FixedDrafts(engine, tuple(text[1:5]))
    events = run(engine, [ask("a", prompt, 12, end_ids=(text[2],))])["a"]
    assert [event.token_ids for event in events] == [(text[0],), (text[1], text[2])]
    statistics = last(events).statistics
    assert events[-1].finish_reason is FinishReason.END_ID
    assert (statistics.steps, statistics.accepted) == (1, 2)
    assert statistics.accepted_by_position == statistics.drafted_by_position == (1, 1)
    assert statistics.accepted_before_cut == 4, "kept apart: what verification alone would have said"


def test_stop_sequences_end_behind_their_last_token(directories: dict[str, Path]) -> None:
    prompt = random_prompts(1)[0]
    text = tokens_of(run(loaded(directories["none"]), [ask("a", prompt, 30)])["a"])
    stop = tuple(text[7:10])
    for kind in directories:
        events = run(loaded(directories[kind]), [ask("a", prompt, 30, stop_sequences=((95, 95), stop))])["a"]
        assert tokens_of(events) == text[:10]
        assert last(events).finish_reason is FinishReason.STOP_WORDS


def test_a_stop_sequence_in_the_prompt_stops_nothing(plain: ReferenceEngine) -> None:
    prompt = random_prompts(1)[0]
    first = tokens_of(run(plain, [ask("a", prompt, 5)])["a"])[0]
    events = run(plain, [ask("a", prompt, 5, stop_sequences=((prompt[-1], first),))])["a"]
    assert last(events).finish_reason is FinishReason.LENGTH


def test_a_seed_gives_the_same_text_in_any_company(directories: dict[str, Path]) -> None:
    prompts = random_prompts(6)
    for kind in directories:
        engine = loaded(directories[kind])
        requests = [
            ask(str(place), prompt, 30, sampling=replace(SAMPLED, seed=place)) for place, prompt in enumerate(prompts)
        ]
        alone = {request.request_id: tokens_of(run(engine, [request])[request.request_id]) for request in requests}
        together = run(engine, requests[::-1])
        assert {name: tokens_of(events) for name, events in together.items()} == alone
        other = run(engine, [replace(requests[0], sampling=replace(SAMPLED, seed=77))])
        assert tokens_of(other["0"]) != alone["0"]


@pytest.mark.parametrize("kind", ["ngram", "draft_target"])
def test_sampled_text_with_speculation_is_distributed_as_plain_text(directories: dict[str, Path], kind: str) -> None:
    """Third token over many seeds, few tokens left by top-k: total variation between the two engines."""
    counts = {}
    prompt, sampling = random_prompts(1, lengths=(6, 6))[0] * 2, SamplingParameters(temperature=1.5, top_k=3)
    for name in ("none", kind):
        requests = [
            ask(str(seed), prompt, 4, sampling=replace(sampling, seed=seed + (10_000 if name == kind else 0)))
            for seed in range(600)
        ]
        events = run(loaded(directories[name]), requests)
        counts[name] = torch.zeros(96)
        for request in requests:
            counts[name][tokens_of(events[request.request_id])[2]] += 1 / 600
    assert (counts["none"] > 0).sum() > 5
    assert (counts["none"] - counts[kind]).abs().sum() / 2 < 0.12


def test_sampled_text_differs_from_greedy_text(plain: ReferenceEngine) -> None:
    prompt = random_prompts(1)[0]
    events = run(plain, [ask("g", prompt, 40), ask("s", prompt, 40, sampling=SAMPLED)])
    assert tokens_of(events["g"]) != tokens_of(events["s"])


BAD_REQUESTS: dict[str, tuple[dict[str, object], str]] = {
    "empty": ({"input_ids": ()}, "empty"),
    "long prompt": ({"input_ids": (1,) * 129}, "129"),
    "token beyond": ({"input_ids": (1, 96)}, "96"),
    "token below": ({"input_ids": (-1,)}, "-1"),
    "no tokens": ({"max_tokens": 0}, "max_tokens"),
    "too many": ({"max_tokens": 400}, "max_seq_len"),
    "temperature": ({"sampling": SamplingParameters(temperature=0.0)}, "temperature"),
    "not a number": ({"sampling": SamplingParameters(temperature=float("nan"))}, "finite|temperature"),
    "top_p zero": ({"sampling": SamplingParameters(top_p=0.0)}, "top_p"),
    "top_p above": ({"sampling": SamplingParameters(top_p=1.5)}, "top_p"),
    "top_k": ({"sampling": SamplingParameters(top_k=-1)}, "top_k"),
    "repetition": ({"sampling": SamplingParameters(repetition_penalty=0.0)}, "repetition_penalty"),
    "end id": ({"end_ids": (100,)}, "100"),
    "empty stop": ({"stop_sequences": ((),)}, "stop"),
    "draft length": ({"max_draft_len": -1}, "draft"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests_are_refused_and_leave_nothing_behind(plain: ReferenceEngine, name: str) -> None:
    fields, part = BAD_REQUESTS[name]
    with pytest.raises(Failure, match=part):
        plain.submit(replace(ask("a", [1, 2]), **fields))
    assert not plain.has_work
    assert plain.status().kv_tokens_used == 0


def test_an_id_in_use_is_refused_until_it_is_free(plain: ReferenceEngine) -> None:
    plain.submit(ask("a", [1, 2], 3))
    with pytest.raises(Failure, match="'a'"):
        plain.submit(ask("a", [3], 3))
    while plain.has_work:
        plain.step()
    plain.submit(ask("a", [3], 3))


def test_requests_enter_in_order_when_their_whole_length_fits(tmp_path: Path, model: LlamaForCausalLM) -> None:
    sizes = Sizes(max_batch_size=4, max_seq_len=60, kv_cache_tokens=100)
    engine = loaded(write_engine(tmp_path / "engine", model, sizes=sizes))
    for name, max_tokens in (("a", 40), ("b", 40), ("c", 10)):
        engine.submit(ask(name, [1] * 10, max_tokens))
    engine.step()
    assert (engine.status().active, engine.status().waiting) == (2, 1)
    engine.submit(ask("d", [1], 1))
    engine.step()
    assert engine.status().waiting == 2, "a small late request must not overtake the waiting one"
    first = [event.request_id for _ in range(200) for event in engine.step() if event.finish_reason]
    assert set(first[:2]) == {"a", "b"}
    assert engine.status().kv_tokens_used == 0


def test_a_pass_holds_no_more_than_max_num_tokens(tmp_path: Path, model: LlamaForCausalLM) -> None:
    engine = loaded(write_engine(tmp_path / "engine", model, sizes=Sizes(max_num_tokens=16), speculator=NGRAM))
    widths = []
    forward = engine._decoder.forward

    def counted(runs: list[object]) -> torch.Tensor:
        widths.append(sum(len(run.token_ids) for run in runs))
        return forward(runs)

    engine._decoder.forward = counted
    run(engine, [ask(str(place), prompt * 3, 20) for place, prompt in enumerate(random_prompts(6))])
    assert max(widths) == 16


def test_plain_decoding_has_statistics_without_drafts(plain: ReferenceEngine) -> None:
    statistics = last(run(plain, [ask("a", [1, 2, 3], 9)])["a"]).statistics
    assert (statistics.steps, statistics.drafted, statistics.acceptance_length) == (8, 0, 1.0)
