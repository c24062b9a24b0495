"""The acceptance a forecast assumes: measured, given, or a guess by kind of speculator that says it is one."""

from collections.abc import Sequence

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.prediction import AcceptanceGuess
from draftyard.rules.predict.speculation import chain_length, rate_of_length

# Conditional rates of the first positions, middling values of published runs on mixed text (Spec-Bench, EAGLE-3,
# SpecBundle): they depend on the workload far more than on the engine, so measure them.
_RATES: dict[SpeculatorKind, tuple[float, ...]] = {
    SpeculatorKind.NGRAM: (0.35, 0.55, 0.6),
    SpeculatorKind.DRAFT_TARGET: (0.65, 0.65, 0.62, 0.6),
    SpeculatorKind.MEDUSA: (0.65, 0.5, 0.4, 0.3),
    SpeculatorKind.EAGLE: (0.7, 0.66, 0.62, 0.58),
    SpeculatorKind.EAGLE3: (0.75, 0.72, 0.7, 0.68),
    SpeculatorKind.MTP: (0.8, 0.65, 0.5),
    SpeculatorKind.LOOKAHEAD: (0.4, 0.4, 0.35),
}


def assumed_acceptance(kind: SpeculatorKind, depth: int) -> AcceptanceGuess:
    """A guess for drafts of this depth."""
    rates = _RATES[kind]
    return AcceptanceGuess(chain_length(rates, depth), rates, f"assumed for {kind}: measure it with draftyard verify")


def given_acceptance(length: float, depth: int) -> AcceptanceGuess:
    """A length that a person gave, as one rate for all positions; ValueError when no draft of this depth reaches it."""
    if not 1.0 <= length <= depth + 1.0:
        raise ValueError(f"acceptance length {length:g} is impossible with drafts of depth {depth}")
    rate = rate_of_length(length, depth)
    return AcceptanceGuess(length, (rate,), "given")


def measured_acceptance(length: float, per_position: Sequence[float | None], depth: int, where: str) -> AcceptanceGuess:
    """What a report measured: rates by position where it has them, scaled to the measured length."""
    rates = tuple(rate for rate in per_position if rate is not None)
    if not rates:
        rates = (rate_of_length(min(length, depth + 1.0), depth),)
    return AcceptanceGuess(length, _scaled(rates, length, depth), f"measured, {where}")


def _scaled(rates: tuple[float, ...], length: float, depth: int) -> tuple[float, ...]:
    """Rates times one factor so that drafts of this depth give the length; a step may draft less than it could."""
    low, high = 0.0, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        if chain_length(tuple(min(rate * middle, 1.0) for rate in rates), depth) < length:
            low = middle
        else:
            high = middle
    return tuple(min(rate * (low + high) / 2, 1.0) for rate in rates)
