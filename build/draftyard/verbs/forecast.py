"""Forecasts every variant of a drawn recipe: from sizes, coefficients of the lane, and the acceptance known so far."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftyard.doors.host_speed_files import read_host_speed
from draftyard.doors.other_estimate import other_estimate, other_estimator_installed
from draftyard.doors.prediction_files import prompt_tokens, read_calibration, read_coefficients
from draftyard.nouns.blueprint import Variant
from draftyard.nouns.calibration import CalibrationFile
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.host_speed import HostSpeed
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.prediction import AcceptanceGuess, Comparison, OtherEstimate, VariantForecast
from draftyard.rules.draw import Way, ways
from draftyard.rules.predict.acceptance_guess import assumed_acceptance, given_acceptance, measured_acceptance
from draftyard.rules.predict.calibrated_lane import calibrated_lane, calibration_key
from draftyard.rules.predict.coefficients import LaneCoefficients, lane_coefficients
from draftyard.rules.predict.devices import device_of
from draftyard.rules.predict.reference_lane import cpu_device, reference_coefficients
from draftyard.rules.predict.surprise import compare
from draftyard.rules.predict.variant_case import Circumstances, variant_case
from draftyard.rules.predict.variant_forecast import forecast_variant
from draftyard.verbs.drawing import Drawing

if TYPE_CHECKING:
    # Reports take a tenth of a second to import, and most plans have none to read.
    from draftyard.nouns.report import Report, VariantResult

NOT_MEASURED = "no speed is predicted on this machine before `draftyard doctor --measure` has measured it"


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """What a person may say: the acceptance length of every speculator, tokens of an average prompt and answer."""

    acceptance_length: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What forecasts rest on: shipped coefficients, this machine's rates, its calibration, and its last report."""

    shipped: Mapping[str, Json]
    host: HostSpeed | None
    calibration: CalibrationFile
    report: "Report | None"

    def result(self, variant: Variant) -> "VariantResult | None":
        """What the report says of a variant of this name."""
        results = () if self.report is None else self.report.variants
        return next((result for result in results if result.name == variant.name), None)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecasts of all variants that have coefficients, notes on the others, and what the last report measured."""

    variants: tuple[VariantForecast, ...]
    notes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]


ASKED_NOTHING = ForecastOptions()


def forecast(drawing: Drawing, out: Path, options: ForecastOptions) -> Forecast:
    """A forecast for each variant that has coefficients, and notes on those that have none.

    Where a report lies below `out`, its acceptance and its lengths are taken unless options say otherwise, and the
    forecasts are set beside it. Failure when an acceptance length is impossible, or a file of coefficients is broken.
    Torch is not loaded.
    """
    evidence = read_evidence(drawing.file.recipe.name, out)
    found: list[VariantForecast] = []
    notes: list[str] = []
    comparisons: list[Comparison] = []
    for variant in drawing.blueprint.variants:
        lane = lane_of(variant, evidence)
        if lane is None:
            notes.append(f"{variant.name}: {NOT_MEASURED}")
            continue
        entry = evidence.calibration.entries.get(_key(variant))
        if entry is not None:
            lane = calibrated_lane(lane, entry, drawing.target.digest)
        result = evidence.result(variant)
        acceptance = known_acceptance(drawing, variant, evidence, options)
        asked = _with_measured_lengths(options, result, report_path(drawing.file.recipe.name, out).parent)
        one = forecast_variant(variant_case(circumstances(drawing, variant, lane, evidence, acceptance, asked)))
        one = _with_others(one, drawing, variant)
        found.append(one)
        comparisons += compare(one, () if result is None else result.tiers)
    return Forecast(tuple(found), tuple(dict.fromkeys(notes)), tuple(comparisons))


def _with_others(one: VariantForecast, drawing: Drawing, variant: Variant) -> VariantForecast:
    """The estimate of another tool beside ours at the first and the last load, where that tool is installed."""
    if variant.gpu is Gpu.CPU or variant.speculator is not SpeculatorKind.NONE or not other_estimator_installed():
        return one
    lengths, model = (one.input_tokens, one.output_tokens), Path(drawing.target.path)
    eight = variant.precision is Precision.FP8
    loads = sorted({one.loads[0].concurrency, one.loads[-1].concurrency})
    asked = [other_estimate(model, variant.gpu, variant.tp_size, lengths, load, eight) for load in loads]
    failed = tuple(dict.fromkeys(found for found in asked if isinstance(found, str)))
    others = tuple(found for found in asked if isinstance(found, OtherEstimate))
    return replace(one, others=others, notes=(*one.notes, *failed))


def _with_measured_lengths(
    options: ForecastOptions, result: "VariantResult | None", directory: Path
) -> ForecastOptions:
    """Lengths of the last report where none are given; they are means over all its loads."""
    if result is None:
        return options
    prompts = [length for file in result.evidence for length in _lengths(directory / file.path)]
    arms = [tier.baseline for tier in result.tiers if tier.baseline.succeeded]
    answers = [arm.output_tokens / arm.succeeded for arm in arms]
    return ForecastOptions(
        options.acceptance_length,
        options.input_tokens or (max(1, round(sum(prompts) / len(prompts))) if prompts else None),
        options.output_tokens or (max(1, round(sum(answers) / len(answers))) if answers else None),
    )


def _lengths(path: Path) -> list[float]:
    return list(prompt_tokens(path).values()) if path.is_file() else []


def read_evidence(recipe_name: str, out: Path) -> Evidence:
    """Everything that was measured so far below `out`; Failure when a file of it is broken."""
    path = report_path(recipe_name, out)
    report = None
    if path.is_file():
        from draftyard.doors.report_files import read_report

        report = read_report(path)
    return Evidence(read_coefficients(), read_host_speed(out), read_calibration(out), report)


def report_path(recipe_name: str, out: Path) -> Path:
    """Where `verify` leaves the report of a recipe unless told otherwise."""
    return out / "deploy" / "out" / recipe_name / "report.json"


def lane_of(variant: Variant, evidence: Evidence) -> LaneCoefficients | None:
    """Coefficients before any calibration of this place; None for a CPU that was not measured at this precision."""
    if variant.lane is not Lane.REFERENCE:
        return lane_coefficients(evidence.shipped, variant.lane.value)
    host = evidence.host
    rates = None if host is None else host.reference.get(variant.precision.value)
    if host is None or rates is None:
        return None
    return reference_coefficients(rates, variant.precision, host.measured_at)


def known_acceptance(
    drawing: Drawing, variant: Variant, evidence: Evidence, options: ForecastOptions
) -> AcceptanceGuess | None:
    """Given before measured before assumed; None for plain decoding."""
    speculator = way_of(drawing, variant).speculator
    if speculator is None:
        return None
    depth = speculator.draft_depth
    if options.acceptance_length is not None:
        try:
            return given_acceptance(options.acceptance_length, depth)
        except ValueError as error:
            raise Failure(f"{variant.name}: {error}", f"give a length from 1 to {depth + 1}") from error
    result = evidence.result(variant)
    found = None if result is None else result.acceptance
    if evidence.report is not None and found is not None and found.acceptance_length is not None:
        where = f"report of {evidence.report.created_at}"
        return measured_acceptance(found.acceptance_length, found.per_position, depth, where)
    return assumed_acceptance(variant.speculator, depth)


def circumstances(
    drawing: Drawing,
    variant: Variant,
    lane: LaneCoefficients,
    evidence: Evidence,
    acceptance: AcceptanceGuess | None,
    options: ForecastOptions,
) -> Circumstances:
    """One variant with everything its forecast depends on.

    An average prompt is taken to be half of the longest one, an average answer the longest that `verify` asks for.
    """
    recipe = drawing.file.recipe
    way = way_of(drawing, variant)
    if variant.gpu is Gpu.CPU:
        assert evidence.host is not None
        device = cpu_device(evidence.host.reference[variant.precision.value])
    else:
        device = device_of(variant.gpu)
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


def way_of(drawing: Drawing, variant: Variant) -> Way:
    """The way to decode that a variant was drawn from."""
    found = ways(drawing.file.recipe, drawing.drafts, drawing.heads)
    return next(way for way in found if variant.name.startswith(f"{way.name}-{variant.precision}-"))


def _key(variant: Variant) -> str:
    return calibration_key(variant.lane.value, variant.gpu.value, variant.precision.value)
