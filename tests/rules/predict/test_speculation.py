"""Acceptance lengths, costs and crossings: identities, bounds and the published facts about them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.forecast_cases import LLAMA_1B, LLAMA_70B, circumstances

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.rules.predict.acceptance_guess import assumed_acceptance, given_acceptance, measured_acceptance
from draftyard.rules.predict.load_forecast import best_draft, cost_of
from draftyard.rules.predict.speculation import chain_length, crossing, rate_of_length
from draftyard.rules.predict.variant_case import variant_case

RATES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(RATES, st.integers(0, 12))
def test_a_chain_yields_between_one_token_and_all(rates: list[float], drafted: int) -> None:
    length = chain_length(rates, drafted)
    assert 1.0 <= length <= drafted + 1.0
    assert chain_length(rates, drafted + 1) >= length


@given(st.floats(0.0, 1.0), st.integers(1, 12))
def test_a_rate_and_its_length_tell_each_other(rate: float, drafted: int) -> None:
    length = chain_length((rate,), drafted)
    assert chain_length((rate_of_length(length, drafted),), drafted) == pytest.approx(length, abs=1e-6)
    if rate < 1:
        assert length == pytest.approx((1 - rate ** (drafted + 1)) / (1 - rate), rel=1e-6)


def test_where_a_curve_falls_below_one() -> None:
    assert crossing([1, 4, 16], [2.0, 1.5, 0.75]) == pytest.approx(4 * 4 ** (0.5 / 0.75))
    assert crossing([1, 4], [2.0, 1.0]) is None
    assert crossing([2, 4], [0.9, 1.2]) == 2
    assert crossing([], []) is None


def test_measured_rates_are_scaled_to_the_measured_length() -> None:
    """A step that drafts fewer tokens than it may has rates that promise more than it yields."""
    guess = measured_acceptance(2.1, (0.8, 0.7, None), 4, "report")
    assert chain_length(guess.rates, 4) == pytest.approx(2.1, abs=1e-3)
    assert guess.source.startswith("measured")


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="impossible"):
        given_acceptance(6.5, 4)
    with pytest.raises(ValueError, match="impossible"):
        given_acceptance(0.5, 4)
    assert given_acceptance(3.0, 4).length == 3.0


@pytest.mark.parametrize("kind", [kind for kind in SpeculatorKind if kind is not SpeculatorKind.NONE])
def test_guesses_say_that_they_are_guesses(kind: SpeculatorKind) -> None:
    guess = assumed_acceptance(kind, 4)
    assert "assumed" in guess.source
    assert 1.0 < guess.length < 5.0


def test_costs_rise_with_the_draft_and_gains_fall_with_the_load() -> None:
    at = variant_case(
        circumstances(LLAMA_70B, Gpu.H200_SXM, Precision.FP8, 1, kind=SpeculatorKind.DRAFT_TARGET, draft=LLAMA_1B)
    ).at
    assert at.drafting is not None
    costs = [cost_of(at, at.drafting, load) for load in (1, 16, 256)]
    assert 1.0 < costs[0] < costs[1] < costs[2]
    lengths = [best_draft(at, load) for load in (1, 16, 64, 1024)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= 3
    assert lengths[-1] <= 1
