"""Forecasts one variant at one concurrency: first token, step, rate, and what speculation does to them."""

import math
from dataclasses import dataclass, replace

from draftyard.nouns.prediction import Estimate, LoadForecast, Placement, Roof, Routing, StepTerms
from draftyard.rules.predict.coefficients import LaneCoefficients
from draftyard.rules.predict.loaded_time import LoadCoefficients, loaded_step_ms
from draftyard.rules.predict.speculation import DraftTerms, IterationTerms, chain_length, iteration_cost
from draftyard.rules.predict.step_terms import (
    attention_flops,
    cache_bytes,
    step_flops,
    step_terms,
    step_weight_bytes,
)
from draftyard.rules.predict.step_time import exposed_ms, step_ms

LONGEST_CHAIN = 16


@dataclass(frozen=True, slots=True)
class Drafting:
    """How tokens are proposed: a draft model on its devices, or weights that are read in each pass (or neither).

    Of `nodes` verified beside the next token at most `depth` are accepted; `passes` run one after the other. `chain`
    says that each node continues the one before. `pass_bytes` are read on one device in each pass, by `layers` layers.
    """

    depth: int
    nodes: int
    passes: int
    chain: bool
    model: Placement | None = None
    pass_bytes: float = 0.0
    layers: int = 0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of the average prompt and answer."""

    prompt: int
    answer: int

    @property
    def context(self) -> float:
        """Tokens that an average decode step sees."""
        return self.prompt + self.answer / 2


@dataclass(frozen=True, slots=True)
class Situation:
    """One variant on its devices, with everything but the concurrency."""

    place: Placement
    drafting: Drafting | None
    lengths: Lengths
    lane: LaneCoefficients
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Milliseconds: first token, plain step, a token of one request among others, a token of all requests together.

    The last is what throughput follows from; both again with drafts; `cost` is c.
    """

    first_ms: float
    step_ms: float
    token_ms: float
    together_ms: float
    spec_token_ms: float
    spec_together_ms: float
    cost: float


def plain_terms(place: Placement, lengths: Lengths, sequences: float, queries: float = 1.0) -> StepTerms:
    """Terms of a decode step; with more queries that of a verifying step."""
    return step_terms(
        place, sequences=sequences, queries=queries, context=lengths.context, head_rows=sequences * queries
    )


def times_of(at: Situation, concurrency: int, held: int) -> LoadTimes:
    """Milliseconds at one concurrency; `held` is how many requests the cache holds, the others wait.

    Alone a prompt starts at once; among others it waits for the step under way and for its share of their prompts.
    Speculation changes the decode part of a token's time; the prompts' part stays as it is.
    """
    running, lane = _running(concurrency, held), at.lane
    terms = plain_terms(at.place, at.lengths, running)
    prompt = prompt_terms(at.place, at.lengths)
    step = step_ms(terms, lane.step)
    load = LoadCoefficients(lane.step, lane.prefill, lane.queue)
    answer = max(at.lengths.answer, 1)
    # While a request decodes, each of the others brings one prompt; all of them together bring one prompt each.
    token = loaded_step_ms(terms, prompt, (running - 1) / answer, load)
    together = loaded_step_ms(terms, prompt, running / answer, load)
    first = step_ms(prompt, lane.first_token) * (1.0 + lane.queue * (concurrency - 1))
    first += step if concurrency > 1 else 0.0
    if at.drafting is None:
        return LoadTimes(first, step, token, together, token, together, 1.0)
    cost = cost_of(at, at.drafting, running)
    length = chain_length(at.rates, at.drafting.depth)
    decode = cost * step / length
    return LoadTimes(first, step, token, together, decode + (token - step), decode + (together - step), cost)


def forecast_load(at: Situation, concurrency: int, held: int) -> LoadForecast:
    """Everything at one concurrency, with intervals."""
    running, bounds = _running(concurrency, held), at.lane.bounds
    per_token = bounds.token_mixture if at.place.shape.experts else bounds.token
    times = times_of(at, concurrency, held)
    terms = plain_terms(at.place, at.lengths, running)
    found = LoadForecast(
        concurrency=concurrency,
        ttft_ms=spread(times.first_ms, bounds.first_token),
        step_ms=spread(times.step_ms, per_token),
        tpot_ms=spread(times.token_ms, per_token),
        tokens_per_s_per_gpu=_rate(running, times.together_ms, at.place.tp, per_token),
        intensity=intensity(at.place, at.lengths, running),
        roof=binding_roof(terms, at.lane),
        limit_share=(terms.weights_ms + terms.cache_ms) / times.step_ms,
        waiting=held < concurrency,
    )
    if at.drafting is None:
        return found
    both = _widened(per_token, _inverse(bounds.speedup))
    return replace(
        found,
        cost=spread(times.cost, _inverse(bounds.speedup)),
        spec_tpot_ms=spread(times.spec_token_ms, both),
        spec_tokens_per_s_per_gpu=_rate(running, times.spec_together_ms, at.place.tp, both),
        speedup=spread(times.together_ms / times.spec_together_ms, bounds.speedup),
        best_draft=best_draft(at, running) if at.drafting.chain else None,
    )


def prompt_terms(place: Placement, lengths: Lengths) -> StepTerms:
    """Terms of one prompt alone."""
    return step_terms(place, sequences=1, queries=lengths.prompt, context=lengths.prompt, head_rows=1, causal=True)


def _running(concurrency: int, held: int) -> int:
    return max(1, min(concurrency, held))


def cost_of(at: Situation, drafting: Drafting, sequences: float) -> float:
    """The cost ratio c of an iteration with this drafting."""
    return _cost_over(at, drafting, sequences, plain_terms(at.place, at.lengths, sequences))


def _cost_over(at: Situation, drafting: Drafting, sequences: float, plain: StepTerms) -> float:
    terms = IterationTerms(
        plain=plain,
        verify=plain_terms(at.place, at.lengths, sequences, drafting.nodes + 1.0),
        draft=_draft_terms(at, drafting, sequences),
        experts=1.0 if at.place.shape.experts else 0.0,
        measured_ms=0.0,
    )
    return iteration_cost(terms, at.lane.step, at.lane.speculation)


def best_draft(at: Situation, sequences: float) -> int:
    """The chain length that gives the most tokens a second at this concurrency; 0: plain decoding does."""
    assert at.drafting is not None
    best, most = 0, 1.0
    plain = plain_terms(at.place, at.lengths, sequences)
    for length in range(1, LONGEST_CHAIN + 1):
        passes = length if at.drafting.passes else 0
        drafting = replace(at.drafting, depth=length, passes=passes, nodes=length)
        gain = chain_length(at.rates, length) / _cost_over(at, drafting, sequences, plain)
        if gain > most:
            best, most = length, gain
    return best


def intensity(place: Placement, lengths: Lengths, sequences: float) -> float:
    """FLOPs over bytes of a plain decode step on one device."""
    flops = sum(step_flops(place, sequences, sequences)) + attention_flops(place, sequences, lengths.context)
    read = step_weight_bytes(place, sequences, Routing.SPREAD) + sequences * cache_bytes(place, lengths.context)
    return flops / read


def binding_roof(terms: StepTerms, lane: LaneCoefficients) -> Roof:
    """Which of reading, arithmetic and exposed time takes longest."""
    fitted = lane.step
    shares = {
        Roof.MEMORY: terms.weights_ms * fitted.weights + terms.cache_ms * fitted.cache,
        Roof.COMPUTE: terms.compute_ms * fitted.compute
        + terms.compute_8bit_ms * fitted.compute_8bit
        + terms.expert_ms * fitted.expert
        + terms.attention_ms * fitted.attention,
        Roof.OVERHEAD: exposed_ms(terms, fitted),
    }
    return max(shares, key=lambda roof: shares[roof])


def spread(value: float, bounds: tuple[float, float]) -> Estimate:
    """A value with its interval from quantiles of log(measured / predicted)."""
    return Estimate(value, value * math.exp(bounds[0]), value * math.exp(bounds[1]))


def _draft_terms(at: Situation, drafting: Drafting, sequences: float) -> DraftTerms:
    """Ideal time of a pass: a model's own step, or the bytes that heads read."""
    if drafting.model is not None:
        terms = plain_terms(drafting.model, at.lengths, sequences)
        ideal = max(terms.weights_ms, terms.compute_ms + terms.compute_8bit_ms + terms.expert_ms) + terms.cache_ms
        return DraftTerms(ideal, float(drafting.model.shape.layers), float(drafting.passes))
    ideal = 1e3 * drafting.pass_bytes / at.place.device.bandwidth_bytes_per_s
    return DraftTerms(ideal, float(drafting.layers), float(drafting.passes))


def _rate(sequences: float, token_ms: float, tp: int, bounds: tuple[float, float]) -> Estimate:
    return spread(1e3 * sequences / token_ms / tp, _inverse(bounds))


def _inverse(bounds: tuple[float, float]) -> tuple[float, float]:
    return -bounds[1], -bounds[0]


def _widened(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Bounds of a product of two independent factors."""
    return -math.hypot(one[0], other[0]), math.hypot(one[1], other[1])
