"""Fits the coefficients of a lane to what was measured here: reports of `verify`, or a sweep."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.measuring_host import now_utc
from draftyard.doors.prediction_files import prompt_tokens, read_calibration, write_calibration
from draftyard.doors.report_files import read_report
from draftyard.doors.sweep_files import SweepPoint, read_sweep
from draftyard.nouns.blueprint import Variant
from draftyard.nouns.calibration import CalibrationEntry, CalibrationFile
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.prediction import AcceptanceGuess
from draftyard.nouns.report import Acceptance, ArmResult, Report, TierResult, VariantResult
from draftyard.rules.predict.acceptance_guess import given_acceptance, measured_acceptance
from draftyard.rules.predict.calibrated_lane import calibration_key, entry_of
from draftyard.rules.predict.coefficients import LaneCoefficients
from draftyard.rules.predict.device_memory import forecast_memory
from draftyard.rules.predict.lane_calibration import FEWEST_POINTS, Observation, Quantity, calibrate, predicted
from draftyard.rules.predict.variant_case import variant_case
from draftyard.verbs.drawing import Drawing, draw_recipe
from draftyard.verbs.forecast import (
    ASKED_NOTHING,
    NOT_MEASURED,
    Evidence,
    ForecastOptions,
    circumstances,
    known_acceptance,
    lane_of,
    read_evidence,
    report_path,
)


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """Where measurements lie: a report of each recipe (default: where verify leaves it), or one sweep for all."""

    out: Path
    reports: tuple[Path, ...] = ()
    sweep: Path | None = None


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """One entry: its name, what is stored, and the median absolute error before and after on its own points."""

    key: str
    entry: CalibrationEntry
    error_before: float
    error_after: float

    def spreads(self) -> tuple[tuple[str, float], ...]:
        """Standard deviations of what is left, by kind; kinds that were not measured are left out."""
        entry = self.entry
        pairs = (
            ("token", entry.token_spread),
            ("first token", entry.first_token_spread),
            ("speed-up", entry.speedup_spread),
        )
        return tuple((name, value) for name, value in pairs if value > 0)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Observations of one lane, device and precision, and the model they come from."""

    lane: LaneCoefficients
    model: str
    observations: tuple[Observation, ...]


def calibrate_recipes(recipes: Sequence[Path], options: CalibrateOptions) -> tuple[tuple[CalibrationResult, ...], Path]:
    """Fit every lane, device and precision that the measurements cover, and keep the coefficients with their errors.

    Several recipes (two model sizes, say) are fitted together. Failure when there is nothing to fit, or a variant of a
    sweep is unknown.
    """
    if options.reports and len(options.reports) != len(recipes):
        raise Failure("reports and recipes differ in number", "give --report once for each recipe, in their order")
    gathered: defaultdict[str, list[_Measured]] = defaultdict(list)
    sources = []
    for index, path in enumerate(recipes):
        drawing = draw_recipe(path, None)
        where = options.reports[index] if options.reports else report_path(drawing.file.recipe.name, options.out)
        source, found = _gather(drawing, where, options)
        sources.append(source)
        for key, measured in found:
            gathered[key].append(measured)
    results = tuple(_fit(key, parts, "; ".join(dict.fromkeys(sources))) for key, parts in sorted(gathered.items()))
    before = read_calibration(options.out)
    kept = CalibrationFile(entries={**before.entries, **{one.key: one.entry for one in results}})
    return results, write_calibration(kept, options.out)


def _gather(drawing: Drawing, report: Path, options: CalibrateOptions) -> tuple[str, list[tuple[str, _Measured]]]:
    evidence = read_evidence(drawing.file.recipe.name, options.out)
    by_variant: dict[str, tuple[Variant, list[Observation], LaneCoefficients]] = {}
    if options.sweep is not None:
        points, source = read_sweep(options.sweep), f"sweep {options.sweep.name}"
        known = {variant.name for variant in drawing.blueprint.variants}
        strange = sorted({point.variant for point in points} - known)
        if strange:
            raise Failure(
                f"{options.sweep.name} names unknown variants {', '.join(strange)}", f"known: {sorted(known)}"
            )
    else:
        found = read_report(report)
        source = f"report of {found.created_at}"
    for variant in drawing.blueprint.variants:
        lane = lane_of(variant, evidence)
        if lane is None:
            raise Failure(f"{variant.name}: {NOT_MEASURED}", "run draftyard doctor --measure", ExitCode.ENVIRONMENT)
        seen = _Seen(drawing, variant, lane, evidence)
        if options.sweep is not None:
            observations = [one for point in points if point.variant == variant.name for one in seen.point(point)]
        else:
            observations = list(seen.report(found, report.parent))
        by_variant[variant.name] = (variant, observations, lane)
    return source, [
        (
            calibration_key(variant.lane.value, variant.gpu.value, variant.precision.value),
            _Measured(lane, drawing.target.digest, tuple(observations)),
        )
        for variant, observations, lane in by_variant.values()
        if observations
    ]


@dataclass(frozen=True, slots=True)
class _Seen:
    """Turns measurements of one variant into observations."""

    drawing: Drawing
    variant: Variant
    lane: LaneCoefficients
    evidence: Evidence

    def report(self, report: Report, directory: Path) -> Iterator[Observation]:
        """Observations of every tier of this variant's result."""
        for result in report.variants:
            if result.name == self.variant.name:
                lengths = _prompt_lengths(result, directory)
                for tier in result.tiers:
                    yield from self.tier(tier, lengths.get(tier.concurrency))

    def tier(self, tier: TierResult, prompt: float | None) -> Iterator[Observation]:
        """What one tier measured; the answer's length is its own, the prompt's the records'."""
        plain = tier.baseline
        answer = _answer(plain)
        if answer is None:
            return
        options = ForecastOptions(None, None if prompt is None else max(1, round(prompt)), max(1, round(answer)))
        make = self._maker(options, _tier_acceptance(tier.acceptance, self.drawing, self.variant), tier.concurrency)
        if plain.tpot_token_weighted_ms:
            yield make(Quantity.TOKEN, plain.tpot_token_weighted_ms)
        if plain.ttft_ms is not None:
            yield make(Quantity.FIRST_TOKEN, plain.ttft_ms.p50)
        if tier.tpot_ratio and tier.acceptance.acceptance_length:
            yield make(Quantity.SPEEDUP, tier.tpot_ratio)

    def point(self, point: SweepPoint) -> Iterator[Observation]:
        """What one line of a sweep measured."""
        options = ForecastOptions(point.acceptance_length, point.input_tokens, point.output_tokens)
        acceptance = known_acceptance(self.drawing, self.variant, self.evidence, options)
        make = self._maker(options, acceptance, point.concurrency)
        yield make(Quantity.TOKEN, point.tpot_ms)
        if point.ttft_ms is not None:
            yield make(Quantity.FIRST_TOKEN, point.ttft_ms)
        if point.speedup is not None and point.acceptance_length is not None and acceptance is not None:
            yield make(Quantity.SPEEDUP, point.speedup)

    def _maker(
        self, options: ForecastOptions, acceptance: AcceptanceGuess | None, load: int
    ) -> Callable[[Quantity, float], Observation]:
        guess = acceptance or known_acceptance(self.drawing, self.variant, self.evidence, ASKED_NOTHING)
        case = variant_case(circumstances(self.drawing, self.variant, self.lane, self.evidence, guess, options))
        lengths = (case.at.lengths.prompt, case.at.lengths.answer)
        memory = forecast_memory(
            case.at.place, case.speculator, case.sizes, lengths, self.lane.memory, self.lane.bounds.memory
        )
        held = max(1, memory.sequences if case.at.drafting else memory.sequences_plain)

        def make(quantity: Quantity, measured: float) -> Observation:
            return Observation(quantity, case.at, load, held, measured)

        return make


def _fit(key: str, parts: Sequence[_Measured], source: str) -> CalibrationResult:
    observations = [one for part in parts for one in part.observations]
    if len(observations) < FEWEST_POINTS:
        raise Failure(
            f"{key}: {len(observations)} points are too few to calibrate on", "measure more loads, or two model sizes"
        )
    lane = parts[0].lane
    found = calibrate(lane, observations)
    models = tuple(dict.fromkeys(part.model for part in parts))
    return CalibrationResult(
        key=key,
        entry=entry_of(found, now_utc(), source, models),
        error_before=_median_error(lane, observations),
        error_after=_median_error(found.lane, observations),
    )


def _median_error(lane: LaneCoefficients, observations: Sequence[Observation]) -> float:
    errors = sorted(abs(predicted(one, lane) / one.measured - 1.0) for one in observations)
    return errors[len(errors) // 2]


def _tier_acceptance(found: Acceptance, drawing: Drawing, variant: Variant) -> AcceptanceGuess | None:
    """What a tier measured; None for plain decoding, or when its drafts were not seen."""
    speculator = next((one for one in drawing.file.recipe.speculators if one.kind == variant.speculator), None)
    if speculator is None or found.acceptance_length is None:
        return None
    if not found.per_position:
        return given_acceptance(min(found.acceptance_length, speculator.draft_depth + 1.0), speculator.draft_depth)
    return measured_acceptance(found.acceptance_length, found.per_position, speculator.draft_depth, "tier")


def _answer(arm: ArmResult) -> float | None:
    return arm.output_tokens / arm.succeeded if arm.succeeded else None


def _prompt_lengths(result: VariantResult, directory: Path) -> dict[int, float]:
    """Mean prompt tokens by load from the raw records beside the report; empty where they are gone."""
    found: dict[int, float] = {}
    for file in result.evidence:
        path = directory / file.path
        if path.is_file():
            found.update(prompt_tokens(path))
    return found
