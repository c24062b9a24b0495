"""Explains what a build would do, step by step with reasons, and forecasts what it would be worth; makes nothing."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.recipe_files import recall
from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.digest import Json
from draftyard.nouns.lane import Lane
from draftyard.nouns.prediction import Comparison, VariantForecast
from draftyard.rules.explain import StepExplanation, VariantMemory, explain, variant_memory
from draftyard.rules.predict.forecast_json import forecast_json
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.forecast import ASKED_NOTHING, ForecastOptions, forecast


@dataclass(frozen=True, slots=True)
class Plan:
    """The explanation of one blueprint. `notes` are findings about the models, `forecast_notes` on the forecasts."""

    recipe_name: str
    steps: tuple[StepExplanation, ...]
    variants: tuple[tuple[str, str], ...]
    memory: tuple[VariantMemory, ...]
    notes: tuple[str, ...]
    forecasts: tuple[VariantForecast, ...] = ()
    forecast_notes: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """The plan as the value that `--format json` prints."""
        return {
            "recipe": self.recipe_name,
            "steps": [_step_json(step) for step in self.steps],
            "variants": [{"name": name, "repository_key": key} for name, key in self.variants],
            "memory": [_memory_json(memory) for memory in self.memory],
            "notes": list(self.notes),
            "forecasts": [forecast_json(one) for one in self.forecasts],
            "forecast_notes": list(self.forecast_notes),
            "predicted_and_measured": [_comparison_json(one) for one in self.comparisons],
        }


def plan(recipe: Path, out: Path, options: ForecastOptions = ASKED_NOTHING) -> Plan:
    """What building this recipe would do, and a forecast of each variant.

    Failure as for `build`; nothing but the cache of hashes is written.
    """
    roots = StoreRoots(out)
    drawing = draw_recipe(recipe, roots.cache)
    blueprint = drawing.blueprint
    store = Store(roots, {}, ())
    have = frozenset(step.key for step in blueprint.steps if store.receipt(step) is not None)
    found = forecast(drawing, out, options)
    return Plan(
        recipe_name=blueprint.recipe_name,
        steps=explain(blueprint, have, recall(roots.by_recipe, blueprint.recipe_name)),
        variants=tuple((variant.name, variant.step_keys[-1]) for variant in blueprint.variants),
        # The reference lane keeps exactly what its files say; of other lanes the forecast tells each device's share.
        memory=tuple(
            variant_memory(blueprint, variant) for variant in blueprint.variants if variant.lane is Lane.REFERENCE
        ),
        notes=drawing.notes,
        forecasts=found.variants,
        forecast_notes=found.notes,
        comparisons=found.comparisons,
    )


def _comparison_json(one: Comparison) -> dict[str, Json]:
    return {
        "variant": one.variant,
        "concurrency": one.concurrency,
        "figure": one.figure,
        "predicted": one.predicted.value,
        "low": one.predicted.low,
        "high": one.predicted.high,
        "measured": one.measured,
        "surprise": one.surprise,
    }


def _step_json(step: StepExplanation) -> dict[str, Json]:
    return {
        "label": step.label,
        "kind": step.kind,
        "key": step.key,
        "state": step.state.value,
        "reason": step.reason,
        "changes": [{"field": change.field, "old": change.old, "new": change.new} for change in step.changes],
        "call": step.call,
    }


def _memory_json(memory: VariantMemory) -> dict[str, Json]:
    return {
        "variant": memory.variant,
        "total_bytes": memory.total_bytes,
        "parts": [{"part": part.part, "bytes": part.bytes, "formula": part.formula} for part in memory.parts],
    }
