"""Whether two greedy texts part at a tie of the two likeliest tokens, or because something is wrong."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum

# Two orders of summation in float32 moved the logits of the demo's target by 1e-4 at most.
FLOAT32_TIE = 1e-3


class DivergenceCause(StrEnum):
    """Why two texts part."""

    TIE = "tie"
    DEFECT = "defect"


@dataclass(frozen=True, slots=True)
class TokenDivergence:
    """The first output token, from 0, in which two texts differ; None is a text that has ended.

    `top_two_gap` is the distance between the two largest logits there, `shortfall` that between the largest and the
    smaller one of the two tokens: a tie of more than two tokens has a small shortfall too.
    """

    index: int
    expected: int | None
    found: int | None
    top_two_gap: float
    shortfall: float
    cause: DivergenceCause


def first_divergence(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """Index of the first token that differs, or of the end of the shorter text; None when they are equal."""
    for index, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return index
    return None if len(expected) == len(found) else min(len(expected), len(found))


def explain_divergence(
    expected: Sequence[int], found: Sequence[int], logits_at: Callable[[int], Sequence[float]], bound: float
) -> TokenDivergence | None:
    """Where and why two greedy texts of one prompt part; None when they are equal.

    `logits_at(i)` gives the logits of all tokens behind the first i tokens, which the texts share, as the request's
    penalties and bans leave them. A tie: both tokens lie within `bound` of the largest, so that another order of
    summation may pick either. A text that ends earlier, or a token that is banned, is a defect. What follows the first
    difference says nothing, since it continues different texts.
    """
    index = first_divergence(expected, found)
    if index is None:
        return None
    logits = logits_at(index)
    first, second = _two_largest(logits)
    tokens = [text[index] if index < len(text) else None for text in (expected, found)]
    shortfall = max(math.inf if token is None else first - logits[token] for token in tokens)
    # A comparison with what is no number is false: no tie.
    cause = DivergenceCause.TIE if shortfall <= bound else DivergenceCause.DEFECT
    return TokenDivergence(index, tokens[0], tokens[1], first - second, shortfall, cause)


def _two_largest(logits: Sequence[float]) -> tuple[float, float]:
    largest = sorted(logits, reverse=True)[:2]
    return largest[0], largest[-1]
