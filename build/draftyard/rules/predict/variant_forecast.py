"""Forecasts a variant: memory, every load, break-even and crossover."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftyard.nouns.prediction import AcceptanceGuess, CrossoverForecast, VariantForecast
from draftyard.rules.predict.device_memory import EngineSizes, SpeculatorMemory, forecast_memory
from draftyard.rules.predict.load_forecast import Situation, cost_of, forecast_load, spread
from draftyard.rules.predict.speculation import chain_length, crossing

_RANGE = 1.5  # published crossovers lie within this factor of the law's in most cases, chains within 2
_CHAIN_RANGE = 2.0
_SEARCHED_TO = 1024
_STEPS_PER_OCTAVE = 4


@dataclass(frozen=True, slots=True)
class VariantCase:
    """What a forecast is asked for. `at.rates` are the conditional acceptance rates that `acceptance` describes."""

    name: str
    at: Situation
    speculator: SpeculatorMemory
    sizes: EngineSizes
    loads: tuple[int, ...]
    acceptance: AcceptanceGuess | None
    notes: tuple[str, ...] = ()


def forecast_variant(case: VariantCase) -> VariantForecast:
    """Everything about one variant, from sizes and coefficients alone."""
    at = case.at
    lengths = (at.lengths.prompt, at.lengths.answer)
    memory = forecast_memory(at.place, case.speculator, case.sizes, lengths, at.lane.memory, at.lane.bounds.memory)
    held = memory.sequences if at.drafting is not None else memory.sequences_plain
    device = at.place.device
    peak = device.peak_8bit if at.place.storage.compute_8bit else device.peak_16bit
    break_even = None
    if at.drafting is not None:
        cost = cost_of(at, at.drafting, 1.0)
        low, high = at.lane.bounds.speedup
        break_even = spread(cost, (-high, -low))
    return VariantForecast(
        variant=case.name,
        device=device.name,
        tp=at.place.tp,
        source=at.lane.source,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        memory=memory,
        loads=tuple(forecast_load(at, load, max(held, 1)) for load in case.loads),
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        peak_flops=peak,
        acceptance=case.acceptance,
        break_even_length=break_even,
        crossover=None if at.drafting is None else forecast_crossover(at),
        notes=case.notes,
    )


def forecast_crossover(at: Situation) -> CrossoverForecast:
    """Where acceptance length / c falls below 1, whatever the cache holds: a load may have shorter texts.

    The range is a factor 1.5 either way, 2 for chains: published chains lose earlier than their bytes tell.
    """
    assert at.drafting is not None
    length = chain_length(at.rates, at.drafting.depth)
    loads = searched_loads()
    found = crossing(loads, [length / cost_of(at, at.drafting, load) for load in loads])
    factor = _CHAIN_RANGE if at.drafting.chain else _RANGE
    if found is None:
        return CrossoverForecast(None, None, None, _SEARCHED_TO)
    return CrossoverForecast(found, found / factor, found * factor, _SEARCHED_TO)


def searched_loads() -> Sequence[float]:
    """Concurrencies from 1 on, four to a doubling."""
    count = _STEPS_PER_OCTAVE * (_SEARCHED_TO.bit_length() - 1)
    return [2.0 ** (index / _STEPS_PER_OCTAVE) for index in range(count + 1)]
