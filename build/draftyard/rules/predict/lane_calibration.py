"""Fits a lane's coefficients to measurements of one place: a few common factors, held near where they started."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from draftyard.nouns.enums import StrEnum
from draftyard.nouns.prediction import StepCoefficients
from draftyard.rules.predict.coefficients import Bounds, LaneCoefficients
from draftyard.rules.predict.load_forecast import Situation, times_of

FEWEST_POINTS = 4
_NOISE = 0.06  # of the logarithm of one measurement
_STEP = 1e-3
_ROUNDS = 30
_LARGEST_MOVE = 0.7
_NORMAL_95 = 1.645


class Quantity(StrEnum):
    """What was measured."""

    TOKEN = "time per token"
    FIRST_TOKEN = "time to first token"
    SPEEDUP = "speed-up"


@dataclass(frozen=True, slots=True)
class Observation:
    """One measurement: milliseconds, or a ratio for a speed-up. `at.lane` is replaced by what is being fitted."""

    quantity: Quantity
    at: Situation
    concurrency: int
    held: int
    measured: float


@dataclass(frozen=True, slots=True)
class Factor:
    """A common factor on some coefficients, and how far it may go (standard deviation of its logarithm)."""

    name: str
    spread: float
    apply: Callable[[LaneCoefficients, float], LaneCoefficients]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The fitted lane; the error of each factor's logarithm by name; spreads of what is left, by quantity."""

    lane: LaneCoefficients
    errors: dict[str, float]
    spreads: dict[Quantity, float]
    points: int


def calibrate(lane: LaneCoefficients, observations: Sequence[Observation]) -> Calibrated:
    """The most likely lane given the observations and the lane it starts from; ValueError with fewer than four points.

    Damped Gauss-Newton on logarithms with Gaussian priors on the factors' logarithms; a point far off counts less
    (Student's t). Intervals come from what is left, never narrower than 3 %.
    """
    if len(observations) < FEWEST_POINTS:
        raise ValueError(f"{len(observations)} points are too few; {FEWEST_POINTS} at least")
    position = [0.0] * len(FACTORS)
    damping, best = 1e-3, math.inf
    normal: list[list[float]] = []
    for _ in range(_ROUNDS):
        rest = _rest(lane, position, observations)
        weights = [5.0 / (4.0 + (one / _NOISE) ** 2) / _NOISE**2 for one in rest]
        slopes = [_slope(lane, position, observations, index, rest) for index in range(len(FACTORS))]
        normal, gradient = _normal(slopes, rest, weights, position)
        moved = False
        for _ in range(6):
            move = _solve(normal, gradient, damping)
            trial = [x + max(-_LARGEST_MOVE, min(step, _LARGEST_MOVE)) for x, step in zip(position, move, strict=True)]
            value = _loss(lane, trial, observations)
            if value < best - 1e-9:
                position, best, moved = trial, value, True
                damping = max(damping / 4, 1e-6)
                break
            damping *= 4
        if not moved:
            break
    inverse = [
        _solve(normal, [1.0 if i == j else 0.0 for i in range(len(FACTORS))], 0.0)[j] for j in range(len(FACTORS))
    ]
    errors = {factor.name: math.sqrt(max(value, 0.0)) for factor, value in zip(FACTORS, inverse, strict=True)}
    fitted = applied(lane, position)
    spreads = _spreads(observations, _rest(lane, position, observations))
    return Calibrated(
        replace(fitted, bounds=_bounds(lane.bounds, spreads), calibrated=True), errors, spreads, len(observations)
    )


def applied(lane: LaneCoefficients, position: Sequence[float]) -> LaneCoefficients:
    """The lane with every factor (a logarithm each) applied."""
    for factor, value in zip(FACTORS, position, strict=True):
        lane = factor.apply(lane, math.exp(value))
    return lane


def predicted(observation: Observation, lane: LaneCoefficients) -> float:
    """What a lane says of an observation."""
    times = times_of(replace(observation.at, lane=lane), observation.concurrency, observation.held)
    if observation.quantity is Quantity.TOKEN:
        return times.token_ms
    if observation.quantity is Quantity.FIRST_TOKEN:
        return times.first_ms
    return times.token_ms / times.spec_token_ms


def bounds_of(spread: float) -> tuple[float, float]:
    """The 90 % interval of a logarithm with this standard deviation."""
    return -_NORMAL_95 * spread, _NORMAL_95 * spread


def _step_factor(*names: str) -> Callable[[LaneCoefficients, float], LaneCoefficients]:
    def apply(lane: LaneCoefficients, factor: float) -> LaneCoefficients:
        return replace(lane, step=scaled_step(lane.step, names, factor))

    return apply


def _first_factor(*names: str) -> Callable[[LaneCoefficients, float], LaneCoefficients]:
    def apply(lane: LaneCoefficients, factor: float) -> LaneCoefficients:
        return replace(lane, first_token=scaled_step(lane.first_token, names, factor))

    return apply


def scaled_step(step: StepCoefficients, names: Sequence[str], factor: float) -> StepCoefficients:
    """Some coefficients of a step times a factor."""
    values = {name: getattr(step, name) * factor for name in names}
    return replace(step, **values)


def _drafting_factor(*names: str) -> Callable[[LaneCoefficients, float], LaneCoefficients]:
    def apply(lane: LaneCoefficients, factor: float) -> LaneCoefficients:
        values = {name: getattr(lane.speculation, name) * factor for name in names}
        return replace(lane, speculation=replace(lane.speculation, **values))

    return apply


def _prefill(lane: LaneCoefficients, factor: float) -> LaneCoefficients:
    return replace(lane, prefill=lane.prefill * factor)


def _queue(lane: LaneCoefficients, factor: float) -> LaneCoefficients:
    return replace(lane, queue=lane.queue * factor)


_ARITHMETIC = ("compute", "compute_8bit", "expert")
_EXPOSED = ("layer_us", "expert_layer_us", "reduce_us", "hop_us", "slow_reduce_us", "slow_hop_us")
FACTORS: tuple[Factor, ...] = (
    Factor("weights", 0.3, _step_factor("weights")),
    Factor("arithmetic", 0.4, _step_factor(*_ARITHMETIC)),
    Factor("cache", 0.4, _step_factor("cache", "attention")),
    Factor("layers", 0.7, _step_factor(*_EXPOSED)),
    Factor("step", 1.0, _step_factor("step_us")),
    Factor("sequences", 1.0, _step_factor("sequence_us")),
    Factor("prefill", 0.5, _prefill),
    Factor("first token, arithmetic", 0.5, _first_factor(*_ARITHMETIC, "attention")),
    Factor("first token, exposed", 0.7, _first_factor(*_EXPOSED, "step_us", "sequence_us")),
    Factor("queue", 0.8, _queue),
    Factor("drafting", 0.7, _drafting_factor("draft", "layer", "pass_us")),
    Factor("iteration", 1.0, _drafting_factor("overhead_us", "overhead_share", "sequence_us")),
    Factor("widening", 0.4, _drafting_factor("arithmetic")),
)


def _rest(lane: LaneCoefficients, position: Sequence[float], observations: Sequence[Observation]) -> list[float]:
    """log(measured / predicted) of every observation."""
    tried = applied(lane, position)
    return [math.log(one.measured / predicted(one, tried)) for one in observations]


def _slope(
    lane: LaneCoefficients,
    position: Sequence[float],
    observations: Sequence[Observation],
    index: int,
    rest: Sequence[float],
) -> list[float]:
    moved = [value + (_STEP if i == index else 0.0) for i, value in enumerate(position)]
    return [(before - after) / _STEP for before, after in zip(rest, _rest(lane, moved, observations), strict=True)]


def _normal(
    slopes: Sequence[Sequence[float]], rest: Sequence[float], weights: Sequence[float], position: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """Normal matrix and right-hand side, the priors among them."""
    size = len(slopes)
    matrix = [
        [sum(w * a * b for w, a, b in zip(weights, slopes[i], slopes[j], strict=True)) for j in range(size)]
        for i in range(size)
    ]
    right = [sum(w * a * r for w, a, r in zip(weights, slopes[i], rest, strict=True)) for i in range(size)]
    for index, factor in enumerate(FACTORS):
        matrix[index][index] += 1.0 / factor.spread**2
        right[index] -= position[index] / factor.spread**2
    return matrix, right


def _deviation(normal: Sequence[Sequence[float]], index: int) -> float:
    """Standard deviation of one factor's logarithm: from the inverse of the normal matrix."""
    unit = [1.0 if row == index else 0.0 for row in range(len(normal))]
    return math.sqrt(max(_solve(normal, unit, 0.0)[index], 0.0))


def _loss(lane: LaneCoefficients, position: Sequence[float], observations: Sequence[Observation]) -> float:
    far = sum(2.5 * math.log1p((one / _NOISE) ** 2 / 4.0) for one in _rest(lane, position, observations))
    return far + sum((x / factor.spread) ** 2 for x, factor in zip(position, FACTORS, strict=True)) / 2.0


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float], damping: float) -> list[float]:
    """Gaussian elimination of (matrix + damping x diagonal) x = right; the matrix is positive definite."""
    size = len(right)
    rows = [[*row, right[i]] for i, row in enumerate(matrix)]
    for i in range(size):
        rows[i][i] *= 1.0 + damping
    for i in range(size):
        for j in range(i + 1, size):
            share = rows[j][i] / rows[i][i]
            for k in range(i, size + 1):
                rows[j][k] -= share * rows[i][k]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (rows[i][size] - sum(rows[i][k] * found[k] for k in range(i + 1, size))) / rows[i][i]
    return found


def _spreads(observations: Sequence[Observation], rest: Sequence[float]) -> dict[Quantity, float]:
    """Root mean square of what is left, by quantity; few points say little, so a prior of 5 % counts as two points."""
    found = {}
    for quantity in Quantity:
        own = [value for one, value in zip(observations, rest, strict=True) if one.quantity is quantity]
        if own:
            found[quantity] = max(math.sqrt((sum(value**2 for value in own) + 2 * 0.05**2) / (len(own) + 1)), 0.03)
    return found


def _bounds(before: Bounds, spreads: dict[Quantity, float]) -> Bounds:
    token = bounds_of(spreads[Quantity.TOKEN]) if Quantity.TOKEN in spreads else None
    return Bounds(
        token=token or before.token,
        token_mixture=token or before.token_mixture,
        first_token=bounds_of(spreads[Quantity.FIRST_TOKEN]) if Quantity.FIRST_TOKEN in spreads else before.first_token,
        memory=before.memory,
        speedup=bounds_of(spreads[Quantity.SPEEDUP]) if Quantity.SPEEDUP in spreads else before.speedup,
    )
