"""Replay: the logits behind any output, and with them whether two texts parted at a tie or through a defect."""

from pathlib import Path

import pytest
import torch
from tests.engine.oracle_proposer import OracleProposer
from tests.engine.tiny_engines import Sizes, loaded, random_llama, random_prompts, run, tokens_of, write_engine

from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.errors import Failure
from draftyard.nouns.generation import GenerationRequest, SamplingParameters
from draftyard.rules.near_ties import FLOAT32_TIE, DivergenceCause, TokenDivergence, explain_divergence

SPECULATOR = {"kind": "ngram", "max_draft_len": 12, "min_match": 1, "max_match": 3}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = Sizes(max_batch_size=3, max_num_tokens=40)
    return write_engine(
        tmp_path_factory.mktemp("replay") / "engine", random_llama(), speculator=SPECULATOR, sizes=sizes
    )


@pytest.fixture
def engine(directory: Path) -> ReferenceEngine:
    return loaded(directory)


def ask(prompt: list[int], max_tokens: int = 60, **fields: object) -> GenerationRequest:
    return GenerationRequest("a", tuple(prompt), max_tokens, max_draft_len=0, **fields)


def explained(
    engine: ReferenceEngine, request: GenerationRequest, expected: list[int], found: list[int]
) -> TokenDivergence | None:
    def logits_at(index: int) -> list[float]:
        return engine.replay(request, [*expected[:index], 0])[index].tolist()

    return explain_divergence(expected, found, logits_at, FLOAT32_TIE)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "sampling": SamplingParameters(repetition_penalty=1.3, frequency_penalty=0.4, min_tokens=20),
            "bad_sequences": ((7,), (3, 4)),
            "end_ids": (11, 12, 13),
        },
    ],
    ids=["plain", "penalised"],
)
def test_each_emitted_token_is_the_likeliest_of_its_row(engine: ReferenceEngine, fields: dict[str, object]) -> None:
    """Prompts shorter and longer than what a pass holds."""
    for prompt in random_prompts(6, lengths=(1, 100)):
        request = ask(prompt, **fields)
        output = tokens_of(run(engine, [request])["a"])
        rows = engine.replay(request, output)
        assert rows.shape == (len(output), 96)
        assert rows.argmax(-1).tolist() == output


def test_a_replay_disturbs_no_running_sequence(engine: ReferenceEngine, directory: Path) -> None:
    requests = [GenerationRequest(str(place), tuple(prompt), 50) for place, prompt in enumerate(random_prompts(2))]
    expected = run(loaded(directory), requests)
    for request in requests:
        engine.submit(request)
    found: dict[str, list[int]] = {"0": [], "1": []}
    while engine.has_work:
        for event in engine.step():
            found[event.request_id].extend(event.token_ids)
        engine.replay(ask([5, 6, 7]), [1, 2, 3])
    assert found == {name: tokens_of(events) for name, events in expected.items()}


def test_a_replay_without_room_is_refused(engine: ReferenceEngine) -> None:
    with pytest.raises(Failure, match="max_tokens"):
        engine.replay(ask([1]), [])
    with pytest.raises(Failure, match="max_seq_len"):
        engine.replay(ask([1]), [1] * 400)
    for number in range(3):
        engine.submit(GenerationRequest(str(number), (1,), 9))
    engine.step()
    with pytest.raises(Failure, match="slots"):
        engine.replay(ask([1]), [1])


def test_a_planted_tie_is_told_from_a_defect(tmp_path: Path) -> None:
    """Token 90 has the output weights of token 40, but for a little: either may be taken, no third one."""
    model = random_llama()
    head = model.lm_head.weight.data
    head[90] = head[40] * (1 + 1e-6)
    engine = loaded(write_engine(tmp_path / "engine", model))
    for prompt in random_prompts(40):
        request = ask(prompt)
        text = tokens_of(run(engine, [request])["a"])
        place = next((at for at, token in enumerate(text) if token in (40, 90)), None)
        if place is None:
            continue
        tied = explained(engine, request, text, [*text[:place], 130 - text[place], *text[place + 1 :]])
        assert tied is not None
        assert (tied.index, tied.cause) == (place, DivergenceCause.TIE)
        assert tied.top_two_gap < 1e-4
        wrong = explained(engine, request, text, [*text[:place], (text[place] + 1) % 96])
        assert wrong is not None
        assert (wrong.index, wrong.cause) == (place, DivergenceCause.DEFECT)
        return
    raise AssertionError("no text holds the planted token")


def test_a_cache_that_keeps_refused_branches_is_a_defect(
    engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = random_prompts(6)
    asked = [GenerationRequest(str(place), tuple(prompt), 60) for place, prompt in enumerate(prompts)]
    truths = {one.request_id: tokens_of(run(engine, [ask(list(one.input_ids))])["a"]) for one in asked}
    oracle = OracleProposer(truths, 96)
    monkeypatch.setattr(oracle, "settle", lambda *arguments: None)
    engine._proposer = oracle
    monkeypatch.setattr(engine._decoder.cache, "keep", lambda *arguments: None)
    found = {name: tokens_of(events) for name, events in run(engine, asked).items()}
    causes = [
        divergence.cause
        for one in asked
        if (divergence := explained(engine, one, truths[one.request_id], found[one.request_id]))
    ]
    assert causes.count(DivergenceCause.DEFECT) == len(causes) >= 3


def test_in_float16_products_a_row_has_the_same_bits_in_any_pass(tmp_path: Path) -> None:
    """With FBGEMM only attention may differ between a verification pass and single steps: far below a tie."""
    engine = loaded(write_engine(tmp_path / "engine", random_llama(), dtype=torch.float16))
    for prompt in random_prompts(4):
        request = ask(prompt, 40)
        output = tokens_of(run(engine, [request])["a"])
        together = engine.replay(request, output)
        apart = torch.stack([engine.replay(request, output[: at + 1])[at] for at in range(len(output))])
        assert float((together - apart).abs().max()) < FLOAT32_TIE / 10
