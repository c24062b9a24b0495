"""Fitted coefficients as JSON: physics and intervals in one file, the corrections in another."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

import numpy as np

from benchmarks.predict.fit_physics import Fitted
from benchmarks.predict.fitting import FamilyFit, coefficient_names
from benchmarks.predict.lanes import LaneFit
from benchmarks.predict.physics import LOADED_NAMES, MEMORY_NAMES, STEP_NAMES
from benchmarks.predict.speculation_model import SpecFit
from draftyard.nouns.digest import Json
from draftyard.rules.predict.correction import Correction
from draftyard.rules.predict.speculation import SpeculationCoefficients

ENGINES = Path(__file__).resolve().parents[2] / "engines"
PHYSICS_FILE = ENGINES / "prediction.json"
CORRECTIONS_FILE = ENGINES / "prediction-corrections.json"
_ABOUT = (
    "Coefficients of the predictor. Multipliers are 1 / efficiency, *_us are microseconds, gb_tp* are GB; `errors` are "
    "standard deviations of the logarithms, about relative errors. `bounds` are the 5 % and 95 % quantiles of "
    "log(measured / predicted) on rows that the fit had not seen, by tier: the `same` run but for its load, a `near` "
    "one of another version, or a `new` one; /0, /1, /2: batch up to 8, up to 64, above."
)
_REFIT = "PYTHONPATH=build python -m benchmarks.predict --rows FILE --write; docs/prediction.md says what FILE holds"


class StoredCorrection(TypedDict):
    """A correction as JSON."""

    knots: list[list[float]]
    surfaces: dict[str, list[float]]


def write_fits(
    families: dict[str, FamilyFit], speculation: SpecFit, lanes: Sequence[LaneFit], rows: Path, count: int
) -> None:
    """Both files; the rows are named by digest and number."""
    made_from: dict[str, Json] = {"rows": count, "sha256": hashlib.sha256(rows.read_bytes()).hexdigest()}
    physics: dict[str, Json] = {"about": _ABOUT, "refit": _REFIT, "made_from": made_from}
    physics["lanes"] = {fit.lane.value: _lane_json(fit, families) for fit in lanes}
    physics["families"] = {name: _family_json(name, fit) for name, fit in families.items()}
    physics["speculation"] = {
        "coefficients": {name: _short(value) for name, value in asdict(speculation.law).items()},
        "errors": dict(zip(asdict(speculation.law), [_short(one) for one in speculation.errors], strict=True)),
        "bounds": {name: [_short(low), _short(high)] for name, (low, high) in speculation.bounds.items()},
    }
    corrections: dict[str, Json] = {
        "about": "Smooth corrections of like measurements: natural logarithms of measured / physics on grid points.",
        "families": {name: _correction_json(fit.correction) for name, fit in families.items()},
        "speculation": _correction_json(speculation.correction),
    }
    PHYSICS_FILE.write_text(json.dumps(physics, indent=1) + "\n", encoding="utf-8")
    CORRECTIONS_FILE.write_text(_lines(corrections) + "\n", encoding="utf-8")


def read_fits() -> tuple[dict[str, FamilyFit], SpecFit]:
    """What `write_fits` wrote."""
    physics = json.loads(PHYSICS_FILE.read_text(encoding="utf-8"))
    corrections = json.loads(CORRECTIONS_FILE.read_text(encoding="utf-8"))
    families = {}
    for name, stored in physics["families"].items():
        names = coefficient_names(name)
        fit = FamilyFit(correction=_correction(corrections["families"][name]), bounds=_bounds(stored["bounds"]))
        for engine, values in stored["coefficients"].items():
            errors = stored["errors"][engine]
            fit.physics[engine] = Fitted(
                np.array([values[one] for one in names]), np.array([errors[one] for one in names])
            )
        families[name] = fit
    spec = physics["speculation"]
    law = SpeculationCoefficients(**spec["coefficients"])
    return families, SpecFit(
        law, _correction(corrections["speculation"]), _bounds(spec["bounds"]), list(spec["errors"].values())
    )


def _lane_json(fit: LaneFit, families: dict[str, FamilyFit]) -> Json:
    """What a plan needs of a lane; first tokens and memory come from the static tables, which measure them apart."""
    values = {name: _short(value) for name, value in zip(LOADED_NAMES, fit.fitted.values, strict=True)}
    errors = {name: _short(value) for name, value in zip(LOADED_NAMES, fit.fitted.errors, strict=True)}
    prompt, memory = families["TTFT"], families["memory"]
    return {
        "source": fit.source,
        "rows": fit.rows,
        "median_error_of_unseen_models_percent": round(100 * fit.median_error, 1),
        "step": {name: values[name] for name in STEP_NAMES},
        "errors": {name: errors[name] for name in STEP_NAMES},
        "prefill": values["prefill"],
        "queue": _short(fit.queue),
        "first_token": dict(zip(STEP_NAMES, [_short(one) for one in prompt.physics[""].values], strict=True)),
        "memory": dict(zip(MEMORY_NAMES, [_short(one) for one in memory.physics[""].values], strict=True)),
        "bounds": {
            "token": [_short(one) for one in fit.token_bounds],
            "token_mixture": [_short(one) for one in fit.mixture_bounds],
            "first_token": [_short(one) for one in prompt.bounds["new"]],
            "memory": [_short(one) for one in memory.bounds["new"]],
        },
    }


def _family_json(name: str, fit: FamilyFit) -> Json:
    names = coefficient_names(name)
    return {
        "coefficients": {
            engine: dict(zip(names, [_short(value) for value in one.values], strict=True))
            for engine, one in fit.physics.items()
        },
        "errors": {
            engine: dict(zip(names, [_short(value) for value in one.errors], strict=True))
            for engine, one in fit.physics.items()
        },
        "bounds": {tier: [_short(low), _short(high)] for tier, (low, high) in fit.bounds.items()},
    }


def _correction_json(correction: Correction) -> Json:
    return {
        "knots": [list(axis) for axis in correction.knots],
        "surfaces": {name: list(values) for name, values in correction.surfaces.items()},
    }


def _correction(stored: StoredCorrection) -> Correction:
    return Correction(
        tuple(tuple(axis) for axis in stored["knots"]),
        {name: tuple(values) for name, values in stored["surfaces"].items()},
    )


def _bounds(stored: dict[str, list[float]]) -> dict[str, tuple[float, float]]:
    return {name: (low, high) for name, (low, high) in stored.items()}


def _short(value: float) -> float:
    return float(f"{float(value):.5g}")


def _lines(value: Json) -> str:
    """JSON with one line for each surface."""
    text = json.dumps(value, indent=1)
    out: list[str] = []
    depth = 0
    for line in text.splitlines():
        stripped = line.strip()
        if depth:
            out[-1] += stripped if stripped.startswith("]") else stripped + (" " if stripped.endswith(",") else "")
        else:
            out.append(line)
        depth += stripped.endswith("[") - stripped.startswith("]") if "{" not in stripped else 0
    return "\n".join(out)
