"""What this machine was measured to do: rates of the reference lane's kernels and the time around them."""

from pydantic import BaseModel, ConfigDict, Field

HOST_SPEED_SCHEMA = 1


class KernelRates(BaseModel):
    """One way to hold weights: bytes of weights read a second at one row, FLOPs a second at many, and exposed times.

    `sharpness` is the exponent of the smooth sum of both that eight rows show.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    read_bytes_per_s: float = Field(gt=0)
    flops: float = Field(gt=0)
    layer_us: float = Field(ge=0)
    step_us: float = Field(ge=0)
    sequence_us: float = Field(ge=0)
    sharpness: float = Field(gt=0)


class HostSpeed(BaseModel):
    """This machine: plain memory and arithmetic by numpy, and the reference engine by the precision of its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = HOST_SPEED_SCHEMA
    measured_at: str
    processor: str
    processors: int
    load_average_1min: float
    copy_bytes_per_s: float = Field(gt=0)
    matrix_flops: float = Field(gt=0)
    reference: dict[str, KernelRates]
