"""The acceptance that a release was measured with, kept to notice later that something changed."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class GoldenRow(BaseModel):
    """One pooled acceptance length (bonus token counted) with its 95 % interval over `n` requests."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    speculator: str
    precision: str
    draft_length: int
    domain: str
    sampling: str
    value: Annotated[float, Field(ge=1)]
    low: float
    high: float
    n: Annotated[int, Field(ge=1)]

    @property
    def key(self) -> tuple[str, str, str, int, str, str]:
        """What two rows must have in common to be compared."""
        return self.target, self.speculator, self.precision, self.draft_length, self.domain, self.sampling


class GoldenAcceptance(BaseModel):
    """A golden file (JSON)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = Field(1, description="Format of this file.")
    rows: tuple[GoldenRow, ...]
