"""A forecast as JSON: the fields of its values, numbers with five digits that matter."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from draftyard.nouns.digest import Json
from draftyard.nouns.prediction import VariantForecast


def forecast_json(forecast: VariantForecast) -> dict[str, Json]:
    """Every field under its name; estimates are objects with value, low and high (90 % interval)."""
    found: dict[str, Json] = {name: _short(value) for name, value in asdict(forecast).items()}
    found["ridge_flop_per_byte"] = _short(forecast.ridge)
    return found


def _short(value: Json) -> Json:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: _short(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_short(inner) for inner in value]
    return str(value) if isinstance(value, str) else value
