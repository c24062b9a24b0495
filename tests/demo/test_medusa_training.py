"""Medusa heads as they are trained: which token each is taught, how its guesses rank, and the tree they grow."""

from itertools import product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from engines.demo.features import Seen  # noqa: E402
from engines.demo.grow_tree import Costs, grow  # noqa: E402
from engines.demo.train_medusa import RANKS, Medusa, lesson_of, ranks  # noqa: E402
from engines.demo.training_text import Answer  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from draftyard.doors.tensors import open_tensor_file  # noqa: E402
from draftyard.engine.medusa_heads import MedusaHead, MedusaHeads  # noqa: E402
from draftyard.engine.medusa_tree import medusa_tree  # noqa: E402
from draftyard.engine.weights import make_linear  # noqa: E402

HIDDEN, VOCABULARY, HEADS = 32, 60, 3


def seen(prompt: int = 4, answer: int = 9) -> Seen:
    draw = torch.Generator().manual_seed(6)
    ids = torch.randint(0, VOCABULARY, (prompt + answer,), generator=draw).tolist()
    tops = torch.stack([torch.tensor([token, (token + 1) % VOCABULARY]) for token in ids[prompt:]])
    chances = torch.tensor([[0.7, 0.3]]).expand(answer, 2)
    text = Answer(tuple(ids[:prompt]), tuple(ids[prompt:]), tops, chances, False, "0" * 64)
    return Seen(text, torch.randn(prompt + answer, HIDDEN, generator=draw))


def shaken() -> Medusa:
    torch.manual_seed(3)
    model = Medusa(HEADS, HIDDEN)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_((0.3 * torch.randn_like(value)).half().float())
    return model


def test_untrained_heads_repeat_the_feature() -> None:
    features = torch.randn(5, HIDDEN)
    for head in range(HEADS):
        assert torch.equal(Medusa(HEADS, HIDDEN)(head, features), features)


def test_head_h_at_position_i_is_taught_token_i_plus_2_plus_h() -> None:
    one = seen()
    for head in range(HEADS):
        features, top_ids, top = lesson_of(one, head)
        assert len(features) == len(top_ids) == len(top)
        for row in range(len(features)):
            position = len(one.text.prompt) - 1 + row
            assert torch.equal(features[row], one.features[position])
            assert int(top_ids[row, 0]) == one.tokens[position + 2 + head]
        assert len(one.text.prompt) - 1 + len(features) + 1 + head == len(one.tokens) - 1


def test_the_engine_ranks_tokens_as_training_does(tmp_path: Path) -> None:
    model, one = shaken(), seen()
    rows = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(8))
    save_file(model.stored(), tmp_path / "model.safetensors")
    file = open_tensor_file(tmp_path / "model.safetensors")

    def stored(name: str) -> torch.Tensor:
        header = file.headers[name]
        return torch.frombuffer(bytearray(file.read(name)), dtype=torch.float16).reshape(header.shape).float()

    heads = [
        MedusaHead((make_linear(stored(f"{head}.0.linear.weight"), stored(f"{head}.0.linear.bias"), False),), None)
        for head in range(HEADS)
    ]
    engine = MedusaHeads(heads, lambda states: states @ rows.T, VOCABULARY)
    found = ranks(model, one, rows)
    first = len(one.text.prompt) - 1
    candidates = engine.candidates(one.features[first : first + len(found)], [RANKS] * HEADS)
    for row, head in product(range(len(found)), range(HEADS)):
        token, guesses = one.tokens[first + row + 2 + head], candidates[head][row]
        assert int(found[row, head]) == (guesses.index(token) if token in guesses else RANKS)


def found() -> torch.Tensor:
    return torch.tensor([[0, 0]] * 4 + [[0, 1]] * 1 + [[1, 0]] * 3 + [[2, RANKS]] * 1 + [[RANKS, 0]] * 1)


def test_where_nodes_cost_alike_the_tree_takes_the_most_frequent_paths_first() -> None:
    grown = grow(found(), 5, Costs([10.0, 11.0, 12.0, 13.0, 14.0, 15.0], 1.0, 0.0))
    assert [one.path for one in grown[:4]] == [(0,), (0, 0), (1,), (1, 0)]
    assert [one.share for one in grown[:4]] == [0.5, 0.4, 0.3, 0.3]
    assert (grown[1].tokens_per_step, grown[1].step_ms) == (pytest.approx(1.9), 13.0)
    assert grown[1].tokens_per_s == pytest.approx(1900 / 13)
    medusa_tree([one.path for one in grown], 2, VOCABULARY)


def test_where_levels_are_dear_the_tree_grows_wide_first() -> None:
    grown = grow(found(), 3, Costs([10.0] * 4, 0.0, 30.0))
    assert [one.path for one in grown] == [(0,), (1,), (2,)]


def test_a_tree_ends_where_no_path_was_ever_taken() -> None:
    assert len(grow(torch.tensor([[0], [RANKS]]), 9, Costs([1.0] * 10, 0.0, 0.0))) == 1
