"""A draft that comes with the request: verified behind the prompt, exact, and counted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_engines import NGRAM, Sizes, loaded, random_llama, random_prompts, run, tokens_of, write_engine

from draftyard.engine.reference import ReferenceEngine
from draftyard.engine.sampling import distribution
from draftyard.nouns.errors import Failure
from draftyard.nouns.generation import FinishReason, GenerationRequest, SamplingParameters

EXTERNAL = {"kind": "none", "max_draft_len": 4}
SMALL = Sizes(max_batch_size=4, max_input_len=100, max_seq_len=100, max_num_tokens=16, kv_cache_tokens=4 * 104)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_engine(
        tmp_path_factory.mktemp("external") / "engine", random_llama(), speculator=EXTERNAL, sizes=SMALL
    )


@pytest.fixture
def engine(directory: Path) -> ReferenceEngine:
    return loaded(directory)


def ask(prompt: list[int], draft: list[int], name: str = "x", **fields: object) -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt), len(draft) + 1, draft_ids=tuple(draft), **fields)


@pytest.mark.parametrize("right", [0, 1, 3, 4])
@pytest.mark.parametrize("prompt", random_prompts(3, lengths=(1, 40)))
def test_what_is_right_of_a_draft_stands_and_one_token_more(engine, prompt, right):
    truth = tokens_of(run(engine, [GenerationRequest("plain", tuple(prompt), 5)])["plain"])
    draft = [token if place < right else (token + 1) % 96 for place, token in enumerate(truth[:4])]
    (event,) = run(engine, [ask(prompt, draft)])["x"]
    assert list(event.token_ids) == truth[: right + 1]
    assert (event.finish_reason, event.statistics.drafted, event.statistics.accepted) == (FinishReason.LENGTH, 4, right)
    assert event.statistics.accepted_by_position == tuple(1 if place < right else 0 for place in range(4))


def test_a_loop_over_drafts_is_the_plain_text_in_company_and_reads_only_what_is_new(engine):
    prompts = [prompt * 2 for prompt in random_prompts(4, lengths=(5, 16))]
    plain = [tokens_of(run(engine, [GenerationRequest("p", tuple(prompt), 40)])["p"]) for prompt in prompts]
    reused = engine.status().prefix_tokens_reused
    texts: list[list[int]] = [[] for _ in prompts]
    read = 0
    while any(len(text) < 36 for text in texts):
        requests = []
        for place, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            if len(text) < 36:
                guess = plain[place][len(text) : len(text) + 3]
                guess[-1] = (guess[-1] + len(text)) % 96
                requests.append(ask([*prompt, *text], guess, str(place)))
                read += len(prompt) + len(text)
        for name, events in run(engine, requests).items():
            texts[int(name)].extend(tokens_of(events))
    assert all(text == truth[: len(text)] for text, truth in zip(texts, plain, strict=True))
    assert engine.status().prefix_tokens_reused - reused > 0.7 * read


def test_an_end_inside_the_accepted_run_ends_it(engine):
    prompt = random_prompts(1)[0]
    truth = tokens_of(run(engine, [GenerationRequest("plain", tuple(prompt), 5)])["plain"])
    (event,) = run(engine, [ask(prompt, truth[:4], end_ids=(truth[1],))])["x"]
    kept = truth[: truth.index(truth[1]) + 1]
    assert (list(event.token_ids), event.finish_reason) == (kept, FinishReason.END_ID)
    assert event.statistics.accepted == len(kept)


def test_a_sampled_request_keeps_the_targets_distribution(engine):
    """Whatever is drafted: the first token's frequencies are the target's probabilities (chi square, 4 choices)."""
    prompt = random_prompts(1)[0]
    sampling = SamplingParameters(temperature=2.0, top_k=4)
    greedy = GenerationRequest("p", tuple(prompt), 1)
    likely = tokens_of(run(engine, [greedy])["p"])
    wanted = distribution(engine.replay(greedy, likely)[0], sampling)
    runs = 1200
    counts = torch.zeros(96)
    for start in range(0, runs, 4):
        requests = [
            ask(prompt, likely, str(index), sampling=replace(sampling, seed=start + index + 1)) for index in range(4)
        ]
        for events in run(engine, requests).values():
            counts[events[0].token_ids[0]] += 1
    chosen = wanted > 0
    assert int(chosen.sum()) == 4
    assert counts[~chosen].sum() == 0
    assert float(((counts[chosen] - runs * wanted[chosen]) ** 2 / (runs * wanted[chosen])).sum()) < 16.3  # 0.1 %, 3 df


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ask([5], [1, 2, 3, 4, 5]), "the engine verifies 4"),
        (replace(ask([5], [1, 2]), max_tokens=2), "2 are asked for"),
        (ask([5], [96]), "token id 96"),
    ],
)
def test_a_draft_that_cannot_be_verified_is_refused(engine, request_, words):
    with pytest.raises(Failure, match=words):
        engine.submit(request_)


def test_an_engine_that_drafts_by_itself_takes_no_draft(tmp_path):
    engine = loaded(write_engine(tmp_path / "ngram", random_llama(), speculator=NGRAM))
    with pytest.raises(Failure, match="drafts by itself"):
        engine.submit(ask([5], [1, 2]))
