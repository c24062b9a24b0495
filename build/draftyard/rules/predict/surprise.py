"""Sets what was measured beside what was predicted, and flags what lies outside the interval."""

from typing import TYPE_CHECKING

from draftyard.nouns.prediction import Comparison, VariantForecast

if TYPE_CHECKING:
    # A plan without a report need not load its values.
    from draftyard.nouns.report import TierResult


def compare(forecast: VariantForecast, tiers: "tuple[TierResult, ...]") -> tuple[Comparison, ...]:
    """Every figure that both have: first token and time per token of the plain arm, and speed-up; loads in order."""
    loads = {load.concurrency: load for load in forecast.loads}
    found = []
    for tier in tiers:
        load = loads.get(tier.concurrency)
        if load is None:
            continue
        first = tier.baseline.ttft_ms.p50 if tier.baseline.ttft_ms else None
        pairs = (
            ("TTFT ms", load.ttft_ms, first),
            ("TPOT ms", load.tpot_ms, tier.baseline.tpot_token_weighted_ms),
            ("speed-up", load.speedup, tier.speedup),
            ("cost c", load.cost, tier.step_cost),
        )
        found += [
            Comparison(forecast.variant, tier.concurrency, name, predicted, measured)
            for name, predicted, measured in pairs
            if predicted is not None and measured is not None and measured > 0
        ]
    return tuple(found)
