"""Forecasts as tables: what fits, how fast it will be, and where speculation stops paying."""

from collections.abc import Sequence

from draftyard.cli_show import print_table
from draftyard.nouns.prediction import Comparison, CrossoverForecast, Estimate, LoadForecast, VariantForecast


def show_forecasts(forecasts: Sequence[VariantForecast]) -> None:
    """Tables of all variants on stdout; every figure with its 90 % interval."""
    if not forecasts:
        return
    memory = ("variant", "device", "fit", "needs", "has", "requests held", "without drafts", "largest parts")
    print_table("memory of one device (forecast)", memory, [_memory_row(one) for one in forecasts])
    speed = [_speed_row(one, load) for one in forecasts for load in one.loads]
    plain = ("variant", "load", "TTFT ms", "step ms", "TPOT ms", "tokens/s/GPU", "FLOP/byte", "roof", "of bandwidth")
    print_table("plain decoding by load (forecast)", plain, speed)
    drafted = [one for one in forecasts if one.acceptance is not None]
    if drafted:
        rows = [_draft_row(one, load) for one in drafted for load in one.loads]
        gains = ("variant", "load", "cost c", "speed-up", "TPOT ms", "tokens/s/GPU", "best draft")
        print_table("speculation by load (forecast)", gains, rows)
        pays = ("variant", "acceptance length", "break-even length", "crossover", "acceptance is")
        print_table("where speculation pays (forecast)", pays, [_pays_row(one) for one in drafted])
    others = [(one, other) for one in forecasts for other in one.others]
    if others:
        told = ("variant", "load", "estimator", "TTFT ms", "TPOT ms")
        beside = [
            (one.variant, str(other.concurrency), other.estimator, short(other.ttft_ms), short(other.tpot_ms))
            for one, other in others
        ]
        print_table("what others estimate for plain decoding", told, beside)
    rows = [(one.variant, f"{one.input_tokens} in, {one.output_tokens} out", one.source) for one in forecasts]
    rows += [(one.variant, "", note) for one in forecasts for note in one.notes]
    print_table("forecasts rest on", ("variant", "tokens", "measurements"), rows)


def show_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Predicted beside measured, with a word where the interval did not hold."""
    if not comparisons:
        return
    rows = [
        (
            one.variant,
            str(one.concurrency),
            one.figure,
            figure(one.predicted),
            short(one.measured),
            f"{one.error:+.0%}",
            "surprise" if one.surprise else "",
        )
        for one in comparisons
    ]
    columns = ("variant", "load", "figure", "predicted", "measured", "predicted is off by", "")
    print_table("predicted and measured", columns, rows)


def figure(estimate: Estimate | None, digits: int = 3) -> str:
    """A value with its 90 % interval."""
    if estimate is None:
        return "-"
    return f"{short(estimate.value, digits)} ({short(estimate.low, digits)}..{short(estimate.high, digits)})"


def short(value: float, digits: int = 3) -> str:
    """Digits that matter, never an exponent."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def crossover_words(found: CrossoverForecast | None) -> str:
    """The range of the crossover."""
    if found is None:
        return "-"
    if found.concurrency is None or found.low is None or found.high is None:
        return f"pays up to {found.searched_to} at least"
    if found.concurrency <= 1.0:
        return "never pays"
    return f"{found.concurrency:.0f} ({found.low:.0f}..{found.high:.0f}) concurrent"


def _memory_row(one: VariantForecast) -> tuple[str, ...]:
    memory = one.memory
    parts = sorted(memory.parts, key=lambda part: -part.size_bytes)[:3]
    return (
        one.variant,
        one.device if one.tp == 1 else f"{one.tp} x {one.device}",
        memory.fit.value,
        f"{memory.total.value / 1e9:.1f} GB ({memory.total.low / 1e9:.1f}..{memory.total.high / 1e9:.1f})",
        "host memory" if memory.usable_bytes is None else f"{memory.usable_bytes / 1e9:.1f} GB",
        str(memory.sequences),
        str(memory.sequences_plain),
        ", ".join(f"{part.part} {part.size_bytes / 1e9:.2g} GB" for part in parts),
    )


def _speed_row(one: VariantForecast, load: LoadForecast) -> tuple[str, ...]:
    return (
        one.variant,
        f"{load.concurrency}{' (some wait)' if load.waiting else ''}",
        figure(load.ttft_ms),
        figure(load.step_ms),
        figure(load.tpot_ms),
        figure(load.tokens_per_s_per_gpu),
        f"{short(load.intensity)} of {short(one.ridge)}",
        load.roof.value,
        f"{load.limit_share:.0%}",
    )


def _draft_row(one: VariantForecast, load: LoadForecast) -> tuple[str, ...]:
    return (
        one.variant,
        str(load.concurrency),
        figure(load.cost),
        figure(load.speedup),
        figure(load.spec_tpot_ms),
        figure(load.spec_tokens_per_s_per_gpu),
        "-" if load.best_draft is None else str(load.best_draft),
    )


def _pays_row(one: VariantForecast) -> tuple[str, ...]:
    assert one.acceptance is not None
    return (
        one.variant,
        f"{one.acceptance.length:.2f}",
        figure(one.break_even_length),
        crossover_words(one.crossover),
        one.acceptance.source,
    )
