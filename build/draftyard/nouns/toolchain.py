"""The pinned tuple that every artefact is made with."""

from pydantic import BaseModel, ConfigDict


class Toolchain(BaseModel):
    """Versions that decide bytes; `driver_floor` is the least driver the container accepts.

    A `rehearsal` makes files of the right names and sizes without weights; its keys are never those of real artefacts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensorrt_llm: str
    tensorrt: str
    cuda: str
    driver_floor: str
    triton_image: str
    store_format: int
    rehearsal: bool = False
