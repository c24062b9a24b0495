"""Tokens are grouped by expert: each expert that is asked works once a pass, on its own tokens only."""

import torch
from torch import Tensor
from torch.nn import functional

from draftyard.engine.experts import Expert, SparseFeedForward
from draftyard.engine.linear import make_linear

EXPERTS, HIDDEN, INNER = 4, 6, 10


class Counted:
    """A linear layer that remembers how many rows each call brought."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.rows: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return functional.linear(x, self.weight)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_hand(x: Tensor, router: Tensor, ups: Tensor, downs: Tensor, per_token: int, normalise: bool) -> Tensor:
    """Token by token, after the formula."""
    rows = []
    for token in x:
        scores = (router @ token).softmax(-1)
        chosen = sorted(range(EXPERTS), key=lambda index: -float(scores[index]))[:per_token]
        total = sum(float(scores[index]) for index in chosen) if normalise else 1.0
        row = torch.zeros(HIDDEN)
        for index in chosen:
            up, gate = (ups[index] @ token).split(INNER)
            row += float(scores[index]) / total * (downs[index] @ (gate * torch.sigmoid(gate) * up))
        rows.append(row)
    return torch.stack(rows)


def test_the_formula_token_by_token() -> None:
    router, ups, downs = random(EXPERTS, HIDDEN), random(EXPERTS, 2 * INNER, HIDDEN), random(EXPERTS, HIDDEN, INNER)
    x = random(9, HIDDEN, seed=1)
    experts = [
        Expert(make_linear(up, None, False), make_linear(down, None, False))
        for up, down in zip(ups, downs, strict=True)
    ]
    for per_token, normalise in ((1, True), (2, True), (2, False), (4, True)):
        found = SparseFeedForward(router, experts, per_token, normalise)(x)
        torch.testing.assert_close(found, by_hand(x, router, ups, downs, per_token, normalise), rtol=1e-5, atol=1e-5)


def test_an_expert_is_multiplied_once_a_pass_or_not_at_all() -> None:
    ups = [Counted(random(2 * INNER, HIDDEN, seed=index)) for index in range(EXPERTS)]
    downs = [Counted(random(HIDDEN, INNER, seed=index)) for index in range(EXPERTS)]
    router = torch.zeros(EXPERTS, HIDDEN)
    router[1, 0], router[2, 1], router[3, 2] = 5.0, 5.0, -50.0
    x = torch.zeros(40, HIDDEN)
    x[:30, 0], x[30:, 1], x[:, 2] = 1.0, 1.0, 1.0
    layer = SparseFeedForward(router, [Expert(up, down) for up, down in zip(ups, downs, strict=True)], 1, True)
    layer(x)
    assert [up.rows for up in ups] == [[], [30], [10], []]
    assert [down.rows for down in downs] == [[], [30], [10], []]


def test_a_token_does_not_feel_its_neighbours() -> None:
    """Alone or in company, a row differs by no more than rounding of its scores."""
    router = random(EXPERTS, HIDDEN)
    experts = [
        Expert(
            make_linear(random(2 * INNER, HIDDEN, seed=index).half(), None, True),
            make_linear(random(HIDDEN, INNER, seed=index).half(), None, True),
        )
        for index in range(EXPERTS)
    ]
    layer = SparseFeedForward(router, experts, 2, True)
    x = random(17, HIDDEN, seed=1)
    together = layer(x)
    for index in range(17):
        torch.testing.assert_close(layer(x[index : index + 1])[0], together[index], rtol=0, atol=1e-5)
