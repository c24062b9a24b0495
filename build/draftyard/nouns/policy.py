"""The measured policy: from which load on drafts are how long."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftyard.nouns.speculation_schedule import ScheduleStep, SpeculationSchedule

Count = Annotated[int, Field(ge=1, strict=True)]
Whole = Annotated[int, Field(ge=0, strict=True)]


class PolicyStep(BaseModel):
    """What holds from a load on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    running: Count = Field(description="Requests in flight from which on this step holds.")
    max_draft_len: Whole = Field(description="Tokens that a draft may have at most; 0 switches speculation off.")


class Policy(BaseModel):
    """A policy file (JSON). Below the first step, and without any, nothing is limited."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = Field(description="Format of this file.")
    steps: tuple[PolicyStep, ...] = Field(description="By rising load.")
    hysteresis: Whole = Field(
        1, description="A step is left only when so many requests fewer run than it takes to enter it, and one less."
    )
    enforced: Annotated[bool, Field(strict=True)] = Field(
        False, description="Also shorten the drafts of requests that ask for a length of their own."
    )
    evidence: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="SHA-256 of the report that the steps were decided from."
    )

    @model_validator(mode="after")
    def _rising(self) -> "Policy":
        if any(later.running <= earlier.running for earlier, later in pairwise(self.steps)):
            raise ValueError("steps must rise by running, each load once")
        return self

    @property
    def schedule(self) -> SpeculationSchedule:
        """The same steps as an engine takes them."""
        return SpeculationSchedule(tuple(ScheduleStep(step.running, step.max_draft_len) for step in self.steps))
