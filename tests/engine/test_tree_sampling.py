"""Sampled speculation on chains and trees has the target's joint distribution; planted mistakes are seen."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.engine.distributions import (
    VOCABULARY,
    Shape,
    chi_square_limit,
    distance,
    own_distribution,
)

from draftyard.engine import acceptance
from draftyard.engine.sampling import adjusted, distribution, uniform
from draftyard.nouns.generation import GenerationRequest, SamplingParameters

RUNS = 2000
CHAIN, WIDE, LOPSIDED = (1, 1), (3, 2, 2, 2), (2, 0, 3)
PLAIN = GenerationRequest("r", (0,), 9, sampling=SamplingParameters(top_k=0))
# Every rule that looks at a node's own history or cuts the distribution.
RULED = GenerationRequest(
    "r",
    (0, 2),
    9,
    end_ids=(1,),
    bad_sequences=((3, 2),),
    sampling=SamplingParameters(
        temperature=1.3,
        top_k=3,
        top_p=0.95,
        repetition_penalty=1.2,
        presence_penalty=0.2,
        frequency_penalty=0.8,
        min_tokens=2,
    ),
)
KINDS: dict[str, Callable[[tuple[int, ...]], torch.Tensor] | None] = {"drawn": own_distribution, "certain": None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("children", [CHAIN, WIDE, LOPSIDED])
def test_three_tokens_have_the_joint_distribution_of_the_target(kind: str, children: tuple[int, ...]) -> None:
    found = distance(Shape(children, KINDS[kind]), PLAIN, RUNS)
    assert found.fits, found


@pytest.mark.parametrize(("kind", "children"), [("drawn", CHAIN), ("drawn", WIDE), ("certain", LOPSIDED)])
def test_penalties_bans_and_filters_hold_on_every_path(kind: str, children: tuple[int, ...]) -> None:
    found = distance(Shape(children, KINDS[kind]), RULED, RUNS)
    assert found.fits, found


def accepts_without_the_ratio(
    wanted: torch.Tensor, proposed: torch.Tensor | None, token: int, generator: torch.Generator
) -> bool:
    return uniform(generator) < float(wanted[token])


def always_accepts(*arguments: object) -> bool:
    return True


def residual_without_normalising(wanted: torch.Tensor, proposed: torch.Tensor | None, token: int) -> torch.Tensor:
    rest = (wanted - (0 if proposed is None else proposed)).clamp(min=0)
    return rest if rest.sum() > 0 else wanted


def residual_without_subtracting(wanted: torch.Tensor, proposed: torch.Tensor | None, token: int) -> torch.Tensor:
    return wanted


def siblings_without_normalising(probabilities: torch.Tensor, token: int) -> torch.Tensor:
    rest = probabilities.clone()
    rest[token] = 0
    return rest


def row_of_the_depth(path: tuple[int, ...]) -> int:
    return len(path)


SLIPS: dict[str, tuple[str, Callable[..., object], str, tuple[int, ...]]] = {
    "accept without the ratio, chain": ("_accepts", accepts_without_the_ratio, "drawn", CHAIN),
    "accept without the ratio, tree": ("_accepts", accepts_without_the_ratio, "drawn", WIDE),
    "accept everything": ("_accepts", always_accepts, "certain", CHAIN),
    "residual not normalised": ("residual", residual_without_normalising, "drawn", WIDE),
    "residual not subtracted, drawn": ("residual", residual_without_subtracting, "drawn", CHAIN),
    "residual not subtracted, certain": ("residual", residual_without_subtracting, "certain", WIDE),
    "q not normalised after a refused sibling": ("without", siblings_without_normalising, "drawn", WIDE),
    "logits of another node": ("_row", row_of_the_depth, "certain", LOPSIDED),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_in_the_acceptance_are_seen(slip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong, kind, children = SLIPS[slip]
    # The drafter of the test draws its siblings with a function of the same module, which stays right.
    right = acceptance.without
    monkeypatch.setattr("tests.engine.distributions.draw_without_replacement", _drawing_with(right))
    monkeypatch.setattr(acceptance, name, wrong)
    found = distance(Shape(children, KINDS[kind]), PLAIN, RUNS)
    assert not found.fits, found


def _drawing_with(without: Callable[[torch.Tensor, int], torch.Tensor]) -> Callable[..., tuple[int, ...]]:
    def drawn(probabilities: torch.Tensor, count: int, generator: torch.Generator) -> tuple[int, ...]:
        tokens: list[int] = []
        for _ in range(count):
            tokens.append(acceptance.draw(probabilities, generator))
            probabilities = without(probabilities, tokens[-1])
        return tuple(tokens)

    return drawn


def test_a_history_without_the_nodes_own_path_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties that do not see the drafted tokens before them."""
    given = len(RULED.input_ids)

    def forgetful(logits: torch.Tensor, request: GenerationRequest, history: list[int]) -> torch.Tensor:
        return adjusted(logits, request, history[:given])

    monkeypatch.setattr(acceptance, "adjusted", forgetful)
    assert not distance(Shape(CHAIN, own_distribution), RULED, RUNS).fits


def filtered(context: tuple[int, ...]) -> torch.Tensor:
    """The draft's distribution after a top-p that is not its own."""
    return distribution(own_distribution(context).log(), SamplingParameters(top_k=0, top_p=0.8))


@pytest.mark.parametrize("children", [CHAIN, WIDE])
def test_a_recorded_distribution_that_was_not_drawn_from_is_seen(children: tuple[int, ...]) -> None:
    right = Shape(children, filtered)
    assert distance(right, PLAIN, RUNS).fits
    assert not distance(replace(right, recorded=own_distribution), PLAIN, RUNS).fits


def test_a_token_that_its_distribution_does_not_hold_is_refused() -> None:
    draft = acceptance.Draft((1,), (torch.tensor([1.0, 0.0]),))
    with pytest.raises(ValueError, match="token 1"):
        acceptance.speculative_sample(draft, lambda path: torch.tensor([0.5, 0.5]), torch.Generator())


def test_siblings_chosen_by_their_worth_after_drawing_are_seen() -> None:
    """Drawing three and keeping the two that the draft likes best is no draw of two: why the rule is written down."""

    class Favourites(Shape):
        def _candidates(self, context: tuple[int, ...], count: int, generator: torch.Generator) -> tuple[int, ...]:
            drawn = acceptance.draw_without_replacement(own_distribution(context), VOCABULARY - 1, generator)
            return tuple(sorted(drawn, key=lambda token: -float(own_distribution(context)[token])))[:count]

    assert not distance(Favourites((2,), own_distribution), PLAIN, RUNS).fits


def test_the_limit_is_the_tabulated_one() -> None:
    """99.99 % points from tables: 10, 30 and 63 degrees of freedom."""
    for freedom, point in ((10, 35.56), (30, 67.63), (63, 114.83)):
        assert chi_square_limit(freedom) == pytest.approx(point, rel=0.02)
