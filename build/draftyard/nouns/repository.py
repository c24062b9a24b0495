"""What a Triton model repository is to be, and the values its configuration files are made of."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from draftyard.nouns.enums import StrEnum
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.policy import Policy

Count = Annotated[int, Field(ge=1)]


class ModelName(StrEnum):
    """The models of a repository; a folder each."""

    PREPROCESSING = "preprocessing"
    ENGINE = "tensorrt_llm"
    POSTPROCESSING = "postprocessing"
    ENSEMBLE = "ensemble"
    ENTRY = "tensorrt_llm_bls"
    DRAFT_ENGINE = "tensorrt_llm_draft"


# Every repository has these; the draft's engine is there where the entry drafts with it.
ALWAYS = (ModelName.PREPROCESSING, ModelName.ENGINE, ModelName.POSTPROCESSING, ModelName.ENSEMBLE, ModelName.ENTRY)


class DecodingMode(StrEnum):
    """How the C++ backend decodes an engine that speculates by itself; `auto` leaves it to the engine."""

    AUTO = "auto"
    MEDUSA = "medusa"
    EAGLE = "eagle"
    LOOKAHEAD = "lookahead"


class TreeSettings(BaseModel):
    """What the C++ backend has to be told of an engine's own speculation.

    `choices` are the nodes of a static tree; `lookahead` holds window, n-gram and verification set sizes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: DecodingMode = DecodingMode.AUTO
    choices: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] = ()
    lookahead: tuple[Count, ...] = ()


class TritonType(StrEnum):
    """Data types of tensors, spelt as in `config.pbtxt` without the prefix TYPE_."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT64 = "UINT64"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    STRING = "STRING"


class LogitsType(StrEnum):
    """Types of logits that the backend can return; the engine was built with one of them."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


class RepositoryPlan(BaseModel):
    """Everything that decides the bytes of a repository, besides its engine and its tokenizer. Lengths in tokens.

    `end_ids` may be empty, then generation ends at its limit; `guests_digest` makes a changed guest a new repository.
    `ranks` are those of the target's engine, `draft_ranks` those of an external draft that is an engine of its own
    (0: there is none). `policy` limits drafts by load; None limits nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lane: Lane
    speculator: SpeculatorKind
    max_draft_len: Annotated[int, Field(ge=0)]
    max_batch_size: Count
    max_input_len: Count
    max_seq_len: Count
    kv_cache_tokens: Count
    max_queue_size: Count
    default_timeout_s: Annotated[float, Field(gt=0)]
    end_ids: tuple[Annotated[int, Field(ge=0)], ...]
    vocab_size: Count
    logits_type: LogitsType
    decoupled: bool = True
    tree: TreeSettings = TreeSettings()
    ranks: Count = 1
    draft_ranks: Annotated[int, Field(ge=0)] = 0
    policy: Policy | None = None
    guests_digest: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of a model. `dims` leave out the batch, -1 is any length.

    `scalar` hides the trailing 1 from the backend (reshape to []); `ragged` lets rows of a batch differ in length.
    """

    name: str
    type: TritonType
    dims: tuple[int, ...]
    optional: bool = False
    scalar: bool = False
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """What a model takes and gives."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Queue:
    """How requests wait in front of a model and are put together."""

    preferred_batch_size: int
    max_queue_size: int
    default_timeout_us: int


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble; pairs of (the model's tensor, the ensemble's tensor)."""

    model: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One `config.pbtxt`. An ensemble has steps and neither backend nor instances; instances run on the CPU side.

    `batching` says that requests are put together; `queue` limits how many wait for that and how long.
    """

    name: str
    backend: str
    max_batch_size: int
    tensors: ModelTensors
    decoupled: bool = False
    instance_count: int = 0
    batching: bool = False
    queue: Queue | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    steps: tuple[EnsembleStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Repository:
    """The configurations of all models, in the order in which a request passes them; the entry comes last."""

    models: tuple[ModelConfig, ...]

    def model(self, name: str) -> ModelConfig:
        """The configuration of this name; KeyError when there is none."""
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)
