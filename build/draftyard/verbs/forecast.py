"""Forecasts every variant of a drawn recipe: from sizes, coefficients of the lane, and the acceptance known so far."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.host_speed_files import read_host_speed
from draftyard.doors.prediction_files import read_coefficients
from draftyard.nouns.blueprint import Variant
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.host_speed import HostSpeed
from draftyard.nouns.lane import Lane
from draftyard.nouns.prediction import VariantForecast
from draftyard.rules.draw import Way, ways
from draftyard.rules.predict.acceptance_guess import assumed_acceptance, given_acceptance
from draftyard.rules.predict.coefficients import LaneCoefficients, lane_coefficients
from draftyard.rules.predict.devices import device_of
from draftyard.rules.predict.reference_lane import cpu_device, reference_coefficients
from draftyard.rules.predict.variant_case import Circumstances, variant_case
from draftyard.rules.predict.variant_forecast import forecast_variant
from draftyard.verbs.drawing import Drawing

NOT_MEASURED = "no speed is predicted on this machine before `draftyard doctor --measure` has measured it"


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """What a person may say: the acceptance length of every speculator, tokens of an average prompt and answer."""

    acceptance_length: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


ASKED_NOTHING = ForecastOptions()


def forecast(drawing: Drawing, out: Path, options: ForecastOptions) -> tuple[tuple[VariantForecast, ...], list[str]]:
    """A forecast for each variant that has coefficients, and notes on those that have none.

    Failure when an acceptance length is impossible, or a file of coefficients is broken. Torch is not loaded.
    """
    shipped = read_coefficients()
    host = read_host_speed(out)
    found, notes = [], []
    for variant in drawing.blueprint.variants:
        lane = _lane(variant, shipped, host)
        if lane is None:
            notes.append(f"{variant.name}: {NOT_MEASURED}")
            continue
        found.append(forecast_variant(variant_case(_circumstances(drawing, variant, lane, host, options))))
    return tuple(found), list(dict.fromkeys(notes))


def _lane(variant: Variant, shipped: Mapping[str, Json], host: HostSpeed | None) -> LaneCoefficients | None:
    if variant.lane is not Lane.REFERENCE:
        return lane_coefficients(shipped, variant.lane.value)
    rates = None if host is None else host.reference.get(variant.precision.value)
    if host is None or rates is None:
        return None
    return reference_coefficients(rates, variant.precision, host.measured_at)


def _circumstances(
    drawing: Drawing, variant: Variant, lane: LaneCoefficients, host: HostSpeed | None, options: ForecastOptions
) -> Circumstances:
    recipe = drawing.file.recipe
    way = _way(drawing, variant)
    if variant.gpu is Gpu.CPU:
        assert host is not None
        device = cpu_device(host.reference[variant.precision.value])
    else:
        device = device_of(variant.gpu)
    acceptance = None
    if way.speculator is not None:
        depth = way.speculator.draft_depth
        acceptance = assumed_acceptance(variant.speculator, depth)
        if options.acceptance_length is not None:
            try:
                acceptance = given_acceptance(options.acceptance_length, depth)
            except ValueError as error:
                raise Failure(f"{variant.name}: {error}", f"give a length from 1 to {depth + 1}") from error
    answer = options.output_tokens or recipe.verify.max_tokens
    prompt = options.input_tokens or max(1, min(recipe.limits.max_input_len // 2, recipe.limits.max_seq_len - answer))
    return Circumstances(
        variant=variant,
        recipe=recipe,
        target=drawing.target.network,
        speculator=way.speculator,
        draft=None if way.draft is None else way.draft.network,
        heads=way.heads,
        device=device,
        lane=lane,
        acceptance=acceptance,
        prompt_tokens=prompt,
        answer_tokens=answer,
    )


def _way(drawing: Drawing, variant: Variant) -> Way:
    """The way to decode that this variant was drawn from."""
    found = ways(drawing.file.recipe, drawing.drafts, drawing.heads)
    return next(way for way in found if variant.name.startswith(f"{way.name}-{variant.precision}-"))
