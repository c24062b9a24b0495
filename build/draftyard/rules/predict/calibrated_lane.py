"""A calibration as it is stored, and the lane that comes of it."""

from dataclasses import asdict, replace

from draftyard.nouns.calibration import CalibrationEntry, Fitted
from draftyard.rules.predict.coefficients import Bounds, LaneCoefficients, speculation_of, step_of
from draftyard.rules.predict.lane_calibration import Calibrated, Quantity, bounds_of

# On a model that was not calibrated on, the interval is this many times as wide: one size tells reading from exposed
# time badly.
_OTHER_MODEL = 3.0
_FACTOR_OF = {
    "weights": "weights",
    "compute": "arithmetic",
    "compute_8bit": "arithmetic",
    "expert": "arithmetic",
    "cache": "cache",
    "attention": "cache",
    "layer_us": "layers",
    "expert_layer_us": "layers",
    "reduce_us": "layers",
    "hop_us": "layers",
    "slow_reduce_us": "layers",
    "slow_hop_us": "layers",
    "step_us": "step",
    "sequence_us": "sequences",
}
_FIRST_OF = {
    **{name: "first token, exposed" for name in _FACTOR_OF if name.endswith("_us")},
    **dict.fromkeys(("compute", "compute_8bit", "expert", "attention"), "first token, arithmetic"),
}
_DRAFTING_OF = {
    "draft": "drafting",
    "layer": "drafting",
    "pass_us": "drafting",
    "overhead_us": "iteration",
    "overhead_share": "iteration",
    "sequence_us": "iteration",
    "arithmetic": "widening",
}


def calibration_key(lane: str, device: str, precision: str) -> str:
    """The name of an entry."""
    return f"{lane}/{device}/{precision}"


def entry_of(found: Calibrated, made_at: str, source: str, models: tuple[str, ...]) -> CalibrationEntry:
    """What is stored: every coefficient with the error of the factor it was moved by."""
    lane, errors = found.lane, found.errors

    def fitted(values: dict[str, float], names: dict[str, str]) -> dict[str, Fitted]:
        return {
            name: Fitted(value=value, error=errors[names[name]] if name in names else 0.0)
            for name, value in values.items()
        }

    return CalibrationEntry(
        made_at=made_at,
        source=source,
        models=models,
        points=found.points,
        step=fitted(asdict(lane.step), _FACTOR_OF),
        first_token=fitted(asdict(lane.first_token), _FIRST_OF),
        speculation=fitted(asdict(lane.speculation), _DRAFTING_OF),
        prefill=Fitted(value=lane.prefill, error=errors["prefill"]),
        queue=Fitted(value=lane.queue, error=errors["queue"]),
        token_spread=found.spreads.get(Quantity.TOKEN, 0.0),
        first_token_spread=found.spreads.get(Quantity.FIRST_TOKEN, 0.0),
        speedup_spread=found.spreads.get(Quantity.SPEEDUP, 0.0),
    )


def calibrated_lane(lane: LaneCoefficients, entry: CalibrationEntry, model: str) -> LaneCoefficients:
    """The lane with a calibration's coefficients; its intervals, wider for a model it has not seen.

    A kind of measurement that the calibration had none of keeps the interval it had.
    """
    wider = 1.0 if model in entry.models else _OTHER_MODEL
    sizes = f"{len(entry.models)} model{'s' if len(entry.models) > 1 else ''}"
    note = "" if len(entry.models) > 1 else "; one size only, so other sizes are less sure"

    def bounds(spread: float, before: tuple[float, float]) -> tuple[float, float]:
        return bounds_of(spread * wider) if spread > 0 else before

    return replace(
        lane,
        source=f"calibrated {entry.made_at} on {entry.points} points of {sizes}, {entry.source}{note}",
        step=step_of({name: one.value for name, one in entry.step.items()}),
        first_token=step_of({name: one.value for name, one in entry.first_token.items()}),
        speculation=speculation_of({name: one.value for name, one in entry.speculation.items()}),
        prefill=entry.prefill.value,
        queue=entry.queue.value,
        bounds=Bounds(
            token=bounds(entry.token_spread, lane.bounds.token),
            token_mixture=bounds(entry.token_spread, lane.bounds.token_mixture),
            first_token=bounds(entry.first_token_spread, lane.bounds.first_token),
            memory=lane.bounds.memory,
            speedup=bounds(entry.speedup_spread, lane.bounds.speedup),
        ),
        calibrated=True,
    )
