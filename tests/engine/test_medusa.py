"""Medusa heads: text unchanged by any tree, full depth when the heads are right, weights in any cut."""

from pathlib import Path

import pytest
import torch
from tests.engine.medusa_engines import (
    Choices,
    cycling_llama,
    full_tree,
    random_heads,
    right_heads,
    write_medusa_engine,
)
from tests.engine.tiny_engines import Sizes, loaded, random_llama, random_prompts, run, tokens_of, write_engine
from transformers import LlamaForCausalLM

from draftyard.engine.medusa_proposer import MedusaProposer
from draftyard.engine.medusa_tree import medusa_tree
from draftyard.nouns.errors import Failure
from draftyard.nouns.generation import GenerationRequest, SamplingParameters

# The shape that Medusa's authors publish has 63 nodes and four levels; this one is as large.
LARGE = [*full_tree(9, 3, 1)[:53], *([0, 0, 0, rank] for rank in range(5)), *([1, 0, 0, rank] for rank in range(5))]
TREES: dict[str, Choices] = {
    "one node": [[0]],
    "depth one": full_tree(40),
    "chain": [[0], [0, 0], [0, 0, 0]],
    "63 nodes": LARGE,
    "given out of order": [[1, 0], [0, 2], [1], [0], [0, 0], [0, 1], [1, 0, 0]],
}
# Eight whole trees fit into one pass.
ROOMY = Sizes(max_num_tokens=2048, kv_cache_tokens=8 * 640)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return random_llama()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, model: LlamaForCausalLM) -> dict[str, list[int]]:
    """Output of the test's requests without speculation."""
    engine = loaded(write_engine(tmp_path_factory.mktemp("plain") / "engine", model))
    return {name: tokens_of(events) for name, events in run(engine, requests()).items()}


def requests(**fields: object) -> list[GenerationRequest]:
    return [
        GenerationRequest(str(place), tuple(prompt), 50, **fields) for place, prompt in enumerate(random_prompts(8))
    ]


@pytest.mark.parametrize("name", TREES)
def test_greedy_text_is_the_plain_text_with_any_tree(
    tmp_path: Path, model: LlamaForCausalLM, plain: dict[str, list[int]], name: str
) -> None:
    choices = TREES[name]
    assert name != "63 nodes" or len(choices) == 63
    engine = loaded(write_medusa_engine(tmp_path / "engine", model, random_heads(4), choices, sizes=ROOMY))
    events = run(engine, requests())
    assert {name: tokens_of(one) for name, one in events.items()} == plain
    statistics = [one[-1].statistics for one in events.values()]
    depth = max(len(path) for path in choices)
    assert {len(one.drafted_by_position) for one in statistics} == {depth}
    assert name != "depth one" or sum(one.accepted for one in statistics) > 100, "40 of 96 tokens are offered"


def test_penalised_text_is_the_plain_text(tmp_path: Path, model: LlamaForCausalLM) -> None:
    sampling = SamplingParameters(repetition_penalty=1.2, frequency_penalty=0.3, min_tokens=10)
    asked = requests(sampling=sampling, bad_sequences=((7,), (3, 4)), end_ids=(11, 12, 13))
    without = run(loaded(write_engine(tmp_path / "plain", model)), asked)
    with_heads = run(loaded(write_medusa_engine(tmp_path / "medusa", model, random_heads(4), LARGE)), asked)
    for name, events in without.items():
        assert tokens_of(with_heads[name]) == tokens_of(events)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_heads_that_are_right_are_accepted_to_the_last_level(tmp_path: Path, depth: int) -> None:
    """51 tokens: one from the prompt, then depth + 1 a step."""
    tokens = 1 + 10 * (depth + 1)
    path = write_medusa_engine(tmp_path / "engine", cycling_llama(), right_heads(4), full_tree(*[2] * depth))
    events = run(loaded(path), [GenerationRequest("a", (5, 12), tokens), GenerationRequest("b", (1,), tokens)])
    for name, first in (("a", 19), ("b", 8)):
        assert tokens_of(events[name]) == [(first + 7 * place) % 64 for place in range(tokens)]
        statistics = events[name][-1].statistics
        assert statistics.accepted_by_position == statistics.drafted_by_position == (10,) * depth
        assert statistics.acceptance_length == depth + 1


def test_a_path_ends_with_the_tokens_that_are_left(tmp_path: Path) -> None:
    """7 tokens: 1 from the prompt, 5 from a whole tree, and for the last one nothing is drafted."""
    path = write_medusa_engine(tmp_path / "engine", cycling_llama(), right_heads(4), full_tree(1, 1, 1, 1))
    for tokens, lengths in ((7, [1, 5, 1]), (6, [1, 5]), (4, [1, 3]), (2, [1, 1])):
        events = run(loaded(path), [GenerationRequest("a", (5,), tokens)])["a"]
        assert [len(event.token_ids) for event in events] == lengths


@pytest.mark.parametrize(("tp_size", "pp_size"), [(2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_heads_are_the_same_however_they_are_cut(
    tmp_path: Path, model: LlamaForCausalLM, tp_size: int, pp_size: int, dtype: torch.dtype
) -> None:
    heads, hidden = random_heads(3, layers=2), torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    found = []
    for number, (tp, pp) in enumerate([(1, 1), (tp_size, pp_size)]):
        path = tmp_path / str(number)
        write_medusa_engine(path, model, heads, [[0], [0, 0], [0, 0, 0]], dtype=dtype, tp_size=tp, pp_size=pp)
        proposer = loaded(path)._proposer
        assert isinstance(proposer, MedusaProposer)
        found.append(proposer._heads.candidates(hidden, (4, 2, 3)))
    assert found[0] == found[1]
    assert found[0] == [
        reference_logits(head, hidden, dtype).topk(width).indices.tolist()
        for head, width in zip(heads, (4, 2, 3), strict=True)
    ]


def reference_logits(head: dict[str, torch.Tensor], hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x + silu(W x + b), twice, then the head, as the paper writes it."""
    rounded = {name: value.to(dtype).float() for name, value in head.items()}
    for layer in range(2):
        weight, bias = (rounded[f"medusa_layers.{layer}.linear.{kind}"] for kind in ("weight", "bias"))
        hidden = hidden + torch.nn.functional.silu(hidden @ weight.T + bias)
    return hidden @ rounded["lm_head.weight"].T


@pytest.mark.parametrize("tied", [False, True])
def test_a_projection_like_the_targets_is_held_once(tmp_path: Path, tied: bool) -> None:
    model = random_llama(tie_word_embeddings=tied)
    heads = random_heads(3)
    own = [dict(head) for head in heads]
    for place in (0, 2):
        own[place]["lm_head.weight"] = model.lm_head.weight.data.clone()
    proposer = loaded(write_medusa_engine(tmp_path / "engine", model, own, full_tree(2, 1, 1)))._proposer
    assert [head.projection is None for head in proposer._heads._heads] == [True, False, True]
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    for place, found in enumerate(proposer._heads.candidates(hidden, (4, 4, 4))):
        state = proposer._heads._heads[place].state(hidden)
        expected = (state @ own[place]["lm_head.weight"].T).topk(4).indices.tolist()
        assert found == expected


def test_a_request_trims_the_tree_breadth_first(tmp_path: Path, model: LlamaForCausalLM) -> None:
    choices = [[0, 0], [0], [1], [0, 0, 0], [1, 0]]
    engine = loaded(write_medusa_engine(tmp_path / "engine", model, random_heads(4), choices))
    shapes: dict[int, set[tuple[int, ...] | None]] = {}
    forward = engine._decoder.forward_with_features
    for wish in (0, 1, 2, 3, 5, 9):
        seen = shapes.setdefault(wish, set())

        def watched(
            runs: list[object], taps: tuple[int, ...], seen: set[tuple[int, ...] | None] = seen
        ) -> tuple[torch.Tensor, torch.Tensor]:
            seen.update((len(one.token_ids), one.parents) for one in runs if one.start >= 2)
            return forward(runs, taps)

        engine._decoder.forward_with_features = watched
        run(engine, [GenerationRequest("a", (5, 6), 9, max_draft_len=wish)])
    # The tree by levels: [0], [1]; [0, 0], [1, 0]; [0, 0, 0]. A chain has no parents to be told.
    assert max(shapes[0]) == (1, None)
    assert (2, None) in shapes[1]
    assert (3, (-1, 0, 0)) in shapes[2]
    assert (4, (-1, 0, 0, 1)) in shapes[3]
    assert (6, (-1, 0, 0, 1, 2, 3)) in shapes[5] & shapes[9]


def test_a_pass_holds_no_more_than_max_num_tokens(tmp_path: Path, model: LlamaForCausalLM) -> None:
    sizes = Sizes(max_num_tokens=80)
    engine = loaded(write_medusa_engine(tmp_path / "engine", model, random_heads(4), LARGE, sizes=sizes))
    widths, forward = [], engine._decoder.forward_with_features

    def counted(runs: list[object], taps: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        widths.append(sum(len(one.token_ids) for one in runs))
        return forward(runs, taps)

    engine._decoder.forward_with_features = counted
    run(engine, requests())
    assert max(widths) == 80


def test_a_larger_tree_never_accepts_less_in_a_step(tmp_path: Path, model: LlamaForCausalLM) -> None:
    """From the same tokens on; over a whole text it may, since the steps then begin at other places."""
    trees = [full_tree(12), full_tree(24), [*full_tree(24), *([rank, 0] for rank in range(8))], full_tree(24, 8)]
    prompts = random_prompts(40, lengths=(3, 6))
    asked = [GenerationRequest(str(place), tuple(prompt), 9) for place, prompt in enumerate(prompts)]
    before = [0] * len(prompts)
    for number, choices in enumerate(trees):
        engine = loaded(write_medusa_engine(tmp_path / str(number), model, random_heads(2), choices, sizes=ROOMY))
        events = run(engine, asked)
        now = [len(events[one.request_id][1].token_ids) for one in asked]
        assert all(later >= earlier for earlier, later in zip(before, now, strict=True))
        before = now
    assert sum(before) > 1.2 * len(prompts)


def test_the_tree_lies_breadth_first_and_keeps_the_given_order_in_a_level() -> None:
    tree = medusa_tree([[1, 0], [0, 2], [1], [0], [0, 0], [1, 0, 0]], 4, 96)
    assert tree.depths == (0, 0, 1, 1, 1, 2)
    assert tree.ranks == (1, 0, 0, 2, 0, 0)
    assert tree.parents == (-1, -1, 0, 1, 1, 2)
    assert tree.widths(6) == (2, 3, 1)
    assert tree.widths(3) == (2, 1)
    assert tree.widths(0) == ()
    assert [tree.prefix(9, depth) for depth in range(5)] == [0, 2, 5, 6, 6]
    assert tree.prefix(4, 3) == 4


@pytest.mark.parametrize(
    ("choices", "part"),
    [
        ([[0], [0]], "twice"),
        ([[]], "empty"),
        ([[0], [1, 0]], "no parent"),
        ([[0], [-1]], "-1"),
        ([[96]], "96"),
        ([[0], [0, 0], [0, 0, 0]], "3 levels"),
    ],
)
def test_choices_that_are_no_tree_are_refused(choices: Choices, part: str) -> None:
    with pytest.raises(Failure, match=part):
        medusa_tree(choices, 2, 96)


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"choices": None}, "choices"),
        ({"choices": [["x"]]}, "choices"),
        ({"choices": []}, "choices"),
        ({"heads": 9}, "9 Medusa heads"),
        ({"max_draft_len": 1}, "max_draft_len"),
    ],
)
def test_an_engine_whose_heads_do_not_fit_is_refused(
    tmp_path: Path, model: LlamaForCausalLM, block: dict[str, object], part: str
) -> None:
    path = write_medusa_engine(tmp_path / "engine", model, random_heads(2), [[0], [0, 0]], block=block)
    with pytest.raises(Failure, match=part):
        loaded(path)


def test_a_missing_head_is_named(tmp_path: Path, model: LlamaForCausalLM) -> None:
    heads = random_heads(2)
    del heads[1]["medusa_layers.0.linear.bias"]
    path = write_medusa_engine(tmp_path / "engine", model, heads, [[0], [0, 0]])
    with pytest.raises(Failure, match=r"medusa_heads\.1\.medusa_layers\.0\.linear\.bias"):
        loaded(path)
