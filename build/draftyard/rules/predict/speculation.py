"""What an iteration of speculation costs in plain steps, and what follows: speed-up, break-even, crossover."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftyard.nouns.prediction import StepCoefficients, StepTerms
from draftyard.rules.predict.step_time import step_ms

_US = 1e-3


@dataclass(frozen=True, slots=True)
class SpeculationCoefficients:
    """What drafting and verifying cost beside the wider step.

    `overhead_share` of a plain step, `overhead_us` an iteration and `sequence_us` for each sequence of it; `pass_us`
    and `layer` (multiplier of the engine's time per layer) for each draft pass, `draft` on its ideal time. `arithmetic`
    multiplies the engine's arithmetic and `sharpness` replaces its exponent where plain and verifying step are
    compared: medium batches hide more arithmetic behind reading than the exponent of whole steps tells.
    `expert_widening` multiplies what the extra tokens add to the step of a mixture.
    """

    overhead_share: float
    overhead_us: float
    sequence_us: float
    pass_us: float
    layer: float
    draft: float
    arithmetic: float
    sharpness: float
    expert_widening: float


@dataclass(frozen=True, slots=True)
class DraftTerms:
    """One draft pass: ideal ms, its layers, how many passes an iteration makes one after the other."""

    ideal_ms: float
    layers: float
    passes: float


@dataclass(frozen=True, slots=True)
class IterationTerms:
    """A plain step and the verifying step of the same sequences.

    `experts` is 1 for a mixture, 0 for a dense model. `measured_ms` is the plain step as measured, 0 when it was not.
    """

    plain: StepTerms
    verify: StepTerms
    draft: DraftTerms
    experts: float
    measured_ms: float


def iteration_cost(terms: IterationTerms, step: StepCoefficients, fitted: SpeculationCoefficients) -> float:
    """The cost ratio c: milliseconds of one iteration over those of one plain step.

    c = 1 + overhead + drafting + widening; the break-even acceptance length is c, and speed-up = acceptance length / c.
    """
    known = terms.measured_ms > 0.0
    base = terms.measured_ms * known + step_ms(terms.plain, step) * (1.0 - known)
    compared = replace(
        step,
        compute=step.compute * fitted.arithmetic,
        compute_8bit=step.compute_8bit * fitted.arithmetic,
        expert=step.expert * fitted.arithmetic,
        sharpness=fitted.sharpness,
    )
    widened = step_ms(terms.verify, compared) / step_ms(terms.plain, compared) - 1.0
    multiplier = 1.0 + (fitted.expert_widening - 1.0) * terms.experts
    one_pass = terms.draft.ideal_ms * fitted.draft + _US * (
        fitted.pass_us + terms.draft.layers * step.layer_us * fitted.layer
    )
    extra = terms.draft.passes * one_pass + _US * (fitted.overhead_us + terms.plain.sequences * fitted.sequence_us)
    return 1.0 + fitted.overhead_share + widened * multiplier + extra / base


def chain_length(rates: Sequence[float], drafted: int) -> float:
    """Acceptance length of a chain of `drafted` tokens: 1 + sum of the products of the conditional rates so far.

    `rates[i]` is the share of steps that accept position i + 1 among those that accepted all before it; positions
    beyond the last known one take its rate, which is optimistic since rates fall.
    """
    length, alive = 1.0, 1.0
    for position in range(drafted):
        alive *= rates[min(position, len(rates) - 1)] if rates else 0.0
        length += alive
    return length


def rate_of_length(length: float, drafted: int) -> float:
    """The one rate that gives this acceptance length with chains of `drafted` tokens (bisection on [0, 1])."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if chain_length((middle,), drafted) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def crossing(loads: Sequence[float], speedups: Sequence[float]) -> float | None:
    """The load at which a falling speed-up passes 1, interpolated on the load's logarithm; None when it does not.

    A curve that starts below 1 crosses at its first load.
    """
    if not loads:
        return None
    if speedups[0] < 1.0:
        return loads[0]
    for index in range(1, len(loads)):
        before, after = speedups[index - 1], speedups[index]
        if after < 1.0:
            share = (before - 1.0) / (before - after)
            return math.exp(math.log(loads[index - 1]) * (1 - share) + math.log(loads[index]) * share)
    return None
