"""What all parts of a report have in common."""

from pydantic import BaseModel, ConfigDict

from draftyard.nouns.enums import StrEnum


class Part(BaseModel):
    """A part of the report: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Verdict(StrEnum):
    """What became of a check or a gate; `skipped` always has its reason."""

    PASS = "pass"
    FAIL = "fail"
    SKIPPED = "skipped"


class Interval(Part):
    """A 95 % interval."""

    low: float
    high: float
