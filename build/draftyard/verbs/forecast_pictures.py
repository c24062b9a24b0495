"""Writes forecasts as a page with pictures."""

from collections.abc import Sequence
from pathlib import Path

from draftyard.doors.forecast_page import write_forecast
from draftyard.nouns.errors import Failure
from draftyard.nouns.prediction import VariantForecast
from draftyard.rules.predict.forecast_charts import forecast_charts


def write_pictures(recipe: str, forecasts: Sequence[VariantForecast], path: Path) -> Path:
    """The page of these forecasts; Failure when there are none to draw."""
    if not forecasts:
        raise Failure("there is no forecast to draw", "measure this machine first: draftyard doctor --measure")
    write_forecast(recipe, forecasts, forecast_charts(forecasts), path)
    return path
