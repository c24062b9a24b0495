"""What a calibration of this place left: coefficients fitted to its own measurements, with their errors."""

from pydantic import BaseModel, ConfigDict, Field

CALIBRATION_SCHEMA = 1


class Fitted(BaseModel):
    """One coefficient and the standard deviation of its logarithm, about its relative error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float = Field(ge=0)
    error: float = Field(ge=0)


class CalibrationEntry(BaseModel):
    """One lane on one device at one precision. `models` are digests of the target models that were measured.

    The spreads are standard deviations of log(measured / predicted) of the fitted points, by kind.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    made_at: str
    source: str
    models: tuple[str, ...]
    points: int
    step: dict[str, Fitted]
    first_token: dict[str, Fitted]
    speculation: dict[str, Fitted]
    prefill: Fitted
    queue: Fitted
    token_spread: float = Field(ge=0)
    first_token_spread: float = Field(ge=0)
    speedup_spread: float = Field(ge=0)


class CalibrationFile(BaseModel):
    """All entries, by `lane/device/precision`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = CALIBRATION_SCHEMA
    entries: dict[str, CalibrationEntry] = Field(default_factory=dict)
