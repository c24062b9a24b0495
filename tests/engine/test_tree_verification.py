"""Trees in the engine: one pass scores them, the accepted path alone stays in the cache, counts are by depth."""

from pathlib import Path

import pytest
import torch
from tests.engine.oracle_proposer import OracleProposer
from tests.engine.tiny_engines import Sizes, loaded, random_llama, random_prompts, run, tokens_of, write_engine
from transformers import LlamaForCausalLM

from draftyard.engine.acceptance import Draft
from draftyard.engine.reference import ReferenceEngine
from draftyard.engine.runs import Run
from draftyard.engine.sequence import Sequence
from draftyard.nouns.generation import FinishReason, GenerationRequest, SamplingParameters

SPECULATOR = {"kind": "ngram", "max_draft_len": 12, "min_match": 1, "max_match": 3}
SIZES = Sizes(max_num_tokens=48)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return random_llama()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, model: LlamaForCausalLM) -> Path:
    return write_engine(tmp_path_factory.mktemp("trees") / "engine", model, speculator=SPECULATOR, sizes=SIZES)


def texts(directory: Path, asked: list[GenerationRequest]) -> dict[str, list[int]]:
    """Plain decoding of the requests, on the same engine."""
    plain = [replaced(one, max_draft_len=0) for one in asked]
    return {name: tokens_of(events) for name, events in run(loaded(directory), plain).items()}


def replaced(request: GenerationRequest, **fields: object) -> GenerationRequest:
    known = {name: getattr(request, name) for name in request.__dataclass_fields__}
    return GenerationRequest(**{**known, **fields})


def with_oracle(engine: ReferenceEngine, truths: dict[str, list[int]], **options: object) -> OracleProposer:
    engine._proposer = OracleProposer(truths, 96, **options)
    return engine._proposer


@pytest.mark.parametrize("seed", range(4))
def test_trees_around_the_truth_change_no_token_and_stand_as_deep_as_they_are_right(directory: Path, seed: int) -> None:
    prompts = random_prompts(12, lengths=(3, 90), seed=seed)
    asked = [GenerationRequest(str(place), tuple(prompt), 60) for place, prompt in enumerate(prompts)]
    truths, engine = texts(directory, asked), loaded(directory)
    oracle = with_oracle(engine, truths, seed=seed)
    events = run(engine, asked)
    assert {name: tokens_of(one) for name, one in events.items()} == truths
    accepted = sum(one[-1].statistics.accepted for one in events.values())
    assert accepted == oracle.accepted == oracle.offered > 150
    assert not oracle.known, "every sequence was forgotten"


def test_penalties_on_trees_change_no_token(directory: Path) -> None:
    sampling = SamplingParameters(repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.1, min_tokens=8)
    fields: dict[str, object] = {"sampling": sampling, "bad_sequences": ((7,), (3, 4)), "end_ids": (11, 12)}
    asked = [
        GenerationRequest(str(place), tuple(prompt), 40, **fields) for place, prompt in enumerate(random_prompts(8))
    ]
    truths, engine = texts(directory, asked), loaded(directory)
    oracle = with_oracle(engine, truths)
    assert {name: tokens_of(one) for name, one in run(engine, asked).items()} == truths
    assert oracle.accepted > 50


def test_cache_and_features_are_those_of_the_text_alone(directory: Path) -> None:
    """After trees with refused branches a slot answers the next token as one that read the text in one pass."""
    prompts = random_prompts(4, lengths=(5, 30))
    asked = [GenerationRequest(str(place), tuple(prompt), 40) for place, prompt in enumerate(prompts)]
    truths, engine, fresh = texts(directory, asked), loaded(directory), loaded(directory)
    oracle = with_oracle(engine, truths, taps=(1, -1))
    for one in asked:
        engine.submit(one)
    checked = 0
    while engine.has_work:
        engine.step()
        for sequence in engine._running.values():
            if sequence.cached and sequence.generated % 3 == 1:
                assert_like_one_pass(engine, fresh, sequence, oracle)
                checked += 1
    assert checked > 15
    assert oracle.accepted > 20


def assert_like_one_pass(
    engine: ReferenceEngine, fresh: ReferenceEngine, sequence: Sequence, oracle: OracleProposer
) -> None:
    tokens, following = tuple(sequence.tokens[: sequence.cached]), tuple(sequence.tokens[sequence.cached :])
    with torch.inference_mode():
        _, features = fresh._decoder.forward_with_features([Run(0, 0, tokens, len(tokens))], oracle.taps)
        expected = fresh._decoder.forward([Run(0, len(tokens), following, 0)])
        # The next pass of the engine writes the same row again.
        found = engine._decoder.forward([Run(sequence.slot, len(tokens), following, 0)])
    assert (found - expected).abs().max() < 1e-4
    held = torch.cat(oracle.absorbed[sequence.request.request_id])
    assert (held - features).abs().max() < 1e-4


class FixedTree:
    """Proposes one tree, once, behind the first token."""

    taps: tuple[int, ...] = ()

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.paths: list[tuple[int, ...]] = []

    def propose(self, sequences: list[Sequence], most: list[int]) -> list[Draft]:
        return [self._draft if one.generated == 1 else Draft() for one in sequences]

    def absorb(self, sequence: Sequence, first_position: int, features: torch.Tensor) -> None:
        raise AssertionError("no features were asked for")

    def settle(self, sequence: Sequence, draft: Draft, path: tuple[int, ...]) -> None:
        self.paths.append(path)

    def forget(self, sequence: Sequence) -> None:
        pass


def tree_around(text: list[int]) -> Draft:
    """Three levels, the truth (tokens 1 to 3 of the text) last among the siblings of each."""
    a, b, c = text[1:4]
    wrong = [next(one for one in range(96) if one not in text)] * 3
    return Draft((wrong[0], a, wrong[1], b, wrong[2], c), None, (-1, -1, 1, 1, 3, 3))


def test_counts_are_by_depth_whatever_the_number_of_nodes(directory: Path) -> None:
    ask = GenerationRequest("a", (5, 9, 3), 9)
    text, engine = texts(directory, [ask])["a"], loaded(directory)
    engine._proposer = FixedTree(tree_around(text))
    events = run(engine, [ask])["a"]
    statistics = events[-1].statistics
    assert [len(event.token_ids) for event in events] == [1, 4, 1, 1, 1, 1]
    assert statistics.drafted_by_position == statistics.accepted_by_position == (1, 1, 1)
    assert (statistics.steps, statistics.drafted, statistics.accepted) == (5, 3, 3)
    assert engine._proposer.paths == [(), (1, 3, 5), (), (), (), ()]


@pytest.mark.parametrize("ends_by", ["end id", "stop word"])
def test_nothing_behind_an_end_is_emitted_or_counted(directory: Path, ends_by: str) -> None:
    ask = GenerationRequest("a", (5, 9, 3), 9)
    text, engine = texts(directory, [ask])["a"], loaded(directory)
    assert text[2] not in text[:2]
    engine._proposer = FixedTree(tree_around(text))
    end = {"end_ids": (text[2],)} if ends_by == "end id" else {"stop_sequences": (tuple(text[1:3]),)}
    events = run(engine, [replaced(ask, **end)])["a"]
    statistics = events[-1].statistics
    assert [event.token_ids for event in events] == [(text[0],), (text[1], text[2])]
    assert events[-1].finish_reason is (FinishReason.END_ID if ends_by == "end id" else FinishReason.STOP_WORDS)
    assert statistics.drafted_by_position == statistics.accepted_by_position == (1, 1)
    assert (statistics.accepted, statistics.accepted_before_cut) == (2, 3)
    assert engine.status().kv_tokens_used == 0


@pytest.mark.parametrize(("wish", "lengths"), [(6, [1, 4]), (4, [1, 3, 1]), (2, [1, 2, 1, 1]), (0, [1] * 5)])
def test_the_requests_draft_length_trims_a_tree_that_a_speculator_grew_too_large(
    directory: Path, wish: int, lengths: list[int]
) -> None:
    ask = GenerationRequest("a", (5, 9, 3), 5)
    text, engine = texts(directory, [ask])["a"], loaded(directory)
    engine._proposer = FixedTree(tree_around(text))
    events = run(engine, [replaced(ask, max_draft_len=wish)])["a"]
    assert tokens_of(events) == text
    assert [len(event.token_ids) for event in events][: len(lengths)] == lengths


def test_trees_stay_within_the_tokens_of_a_pass(directory: Path) -> None:
    prompts = random_prompts(8, lengths=(3, 90))
    asked = [GenerationRequest(str(place), tuple(prompt), 30) for place, prompt in enumerate(prompts)]
    truths, engine = texts(directory, asked), loaded(directory)
    with_oracle(engine, truths)
    widths, forward = [], engine._decoder.forward_with_features

    def counted(runs: list[Run], taps: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        widths.append(sum(len(one.token_ids) for one in runs))
        return forward(runs, taps)

    engine._decoder.forward_with_features = counted
    run(engine, asked)
    assert max(widths) == SIZES.max_num_tokens
