"""Recipe x sources x toolchain: complete, frozen, hashed; a chain of steps per variant."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftyard.nouns.digest import Json, digest
from draftyard.nouns.enums import StrEnum
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Precision


class StepKind(StrEnum):
    """What a step makes; also the name of its folder in the store."""

    CALIBRATION = "calibration"
    CHECKPOINT = "checkpoint"
    ENGINE = "engine"
    REPOSITORY = "repository"


@dataclass(frozen=True, slots=True)
class Step:
    """One artefact to make. `parameters` and `inputs` (keys or source digests) decide its bytes; `label` is for people.

    `sources` names the model directories (and calibration texts) the step reads; paths are no part of the key.
    """

    kind: StepKind
    label: str
    parameters: Mapping[str, Json]
    inputs: tuple[str, ...]
    toolchain: Mapping[str, Json]
    sources: tuple[str, ...] = ()
    # The identity of the artefact, 64 hexadecimal digits; computed once, for it is asked for often.
    key: str = field(init=False)

    def __post_init__(self) -> None:
        """Hash what decides the artefact's bytes."""
        identity: dict[str, Json] = {
            "kind": self.kind.value,
            "parameters": self.parameters,
            "toolchain": self.toolchain,
            "inputs": list(self.inputs),
        }
        object.__setattr__(self, "key", digest(identity))


@dataclass(frozen=True, slots=True)
class Variant:
    """One deployable choice and the keys of its steps, in order; the last one is the repository."""

    name: str
    lane: Lane
    speculator: SpeculatorKind
    precision: Precision
    gpu: Gpu
    tp_size: int
    step_keys: tuple[str, ...]

    @property
    def repository_key(self) -> str:
        """Key of the Triton repository this variant ends in; ValueError where it ends in an engine."""
        if not self.packaged:
            raise ValueError(f"{self.name} has no repository")
        return self.step_keys[-1]

    @property
    def packaged(self) -> bool:
        """Whether a Triton repository is made of it; engines of the llmapi lane are served by trtllm-serve."""
        return self.lane is not Lane.LLMAPI


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Everything to be made for one recipe; steps in an order in which each comes after its inputs."""

    recipe_name: str
    steps: tuple[Step, ...]
    variants: tuple[Variant, ...]

    def step(self, key: str) -> Step:
        """The step with this key; KeyError when there is none."""
        for step in self.steps:
            if step.key == key:
                return step
        raise KeyError(key)
