"""The architecture facts of one decoder, each resolved once from its source."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class Precision(StrEnum):
    """How weights are stored; FP8 keeps norms, embeddings and heads in 16 bit."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True)
class RotaryScaling:
    """`rope_scaling` of the source: its kind and every number, in the source's own key names."""

    kind: str
    values: tuple[tuple[str, float | int | bool | tuple[float, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """Sizes of a sparse feed-forward: experts in all, experts a token visits, rows of one expert."""

    experts: int
    experts_per_token: int
    intermediate_size: int
    normalise: bool


@dataclass(frozen=True, slots=True)
class Network:
    """One decoder-only transformer. Counts are global (before sharding); `vocab_size` is unpadded."""

    family: str
    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float
    rotary_base: float
    hidden_act: str
    tied_head: bool
    qkv_bias: bool = False
    dense_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rotary_scaling: RotaryScaling | None = None
    experts: MixtureOfExperts | None = None
    sliding_window: int | None = None
