"""What the reference lane reads from an engine's `config.json`; what it cannot execute is refused here."""

from collections.abc import Mapping
from dataclasses import dataclass

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.quantization_block import quantization_block

ROTARY_KINDS = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
_POSITIONS = ("rope_gpt_neox", "long_rope")
# MoeConfig.ExpertScaleNormalizationMode of TensorRT-LLM 1.2.1.
_NONE, _RENORMALISE = 0, 1
# A CPU reads so many tokens in about the time of a few decoding steps, at nearly its full speed.
PREFILL_CHUNK_TOKENS = 64
REBUILD = "build the engine again with this version of draftyard"


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of one decoder as executed (whole, not per rank); `dtype` is how its weights are stored.

    `experts` 0 means a dense feed-forward.
    """

    dtype: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    vocabulary: int
    norm_epsilon: float
    rotary_base: float
    rotary_scaling: Mapping[str, Json]
    max_positions: int
    sliding_window: int | None
    qk_norm: bool
    tp_size: int
    pp_size: int
    experts: int = 0
    experts_per_token: int = 0
    experts_normalised: bool = False
    fp8_cache: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Tokens a request may use; `max_seq_len` counts prompt and output, without room for drafts.

    While sequences decode, one pass reads at most `prefill_chunk_tokens` of prompts.
    """

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_draft_len: int
    kv_cache_tokens: int
    prefill_chunk_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculatorChoice:
    """Which speculator the engine was built with; `max_draft_len` counts the nodes of a tree.

    The match lengths belong to n-gram lookup, `choices` (paths of candidate ranks) to a static tree, `depth` (drafting
    steps), `dynamic_top_k` and `max_non_leaves_per_layer` to a tree grown by confidence, `heads` to Medusa.
    """

    kind: SpeculatorKind
    max_draft_len: int
    min_match: int = 1
    max_match: int = 3
    depth: int = 0
    choices: tuple[tuple[int, ...], ...] | None = None
    dynamic_top_k: int | None = None
    max_non_leaves_per_layer: int = 0
    heads: int = 0


def section(config: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    """A nested object of a config; Failure when it is absent or of another kind."""
    value = config.get(name)
    if not isinstance(value, Mapping):
        raise Failure(f"engine config.json has no object {name!r}", REBUILD, ExitCode.ENVIRONMENT)
    return value


def integer(config: Mapping[str, Json], name: str, default: int | None = None) -> int:
    """A whole number of a config; null equals absence. Failure when absent without a default, or of another kind."""
    value = default if config.get(name) is None else config[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise Failure(
            f"engine config.json: {name} must be a whole number, not {value!r}", REBUILD, ExitCode.ENVIRONMENT
        )
    return value


def real(config: Mapping[str, Json], name: str, default: float | None = None) -> float:
    """A number of a config; null equals absence. Failure when absent without a default, or of another kind."""
    value = default if config.get(name) is None else config[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Failure(f"engine config.json: {name} must be a number, not {value!r}", REBUILD, ExitCode.ENVIRONMENT)
    return float(value)


def decoder_shape(pretrained: Mapping[str, Json]) -> DecoderShape:
    """The decoder of a `pretrained_config`; Failure names what this lane does not execute."""
    scaling = pretrained.get("rotary_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise Failure("engine config.json: rotary_scaling must be an object", REBUILD, ExitCode.ENVIRONMENT)
    _refuse_unknown(pretrained, scaling)
    mapping = section(pretrained, "mapping")
    moe = section(pretrained, "moe") if pretrained.get("moe") else {}
    experts = integer(moe, "num_experts") if moe else 0
    hidden_size, heads = integer(pretrained, "hidden_size"), integer(pretrained, "num_attention_heads")
    return DecoderShape(
        dtype=str(pretrained.get("dtype")),
        hidden_size=hidden_size,
        layers=integer(pretrained, "num_hidden_layers"),
        heads=heads,
        kv_heads=integer(pretrained, "num_key_value_heads", heads),
        head_size=integer(pretrained, "head_size", hidden_size // heads),
        intermediate_size=integer(pretrained, "intermediate_size"),
        vocabulary=integer(pretrained, "vocab_size"),
        norm_epsilon=real(pretrained, "norm_epsilon"),
        rotary_base=real(pretrained, "rotary_base"),
        rotary_scaling=scaling,
        max_positions=integer(pretrained, "max_position_embeddings"),
        sliding_window=integer(pretrained, "sliding_window") if pretrained.get("sliding_window") else None,
        qk_norm=bool(pretrained.get("qk_layernorm", False)),
        tp_size=integer(mapping, "tp_size", 1),
        pp_size=integer(mapping, "pp_size", 1),
        experts=experts,
        experts_per_token=integer(moe, "top_k") if experts else 0,
        experts_normalised=moe.get("normalization_mode") == _RENORMALISE,
        fp8_cache=quantization_block(pretrained).get("kv_cache_quant_algo") == "FP8",
    )


def _refuse_unknown(pretrained: Mapping[str, Json], scaling: Mapping[str, Json]) -> None:
    """The reference lane executes RoPE decoders, dense or with experts, in 32 and 16 bit and FP8; all else is named."""
    hint = "use a Llama-like model in fp32, fp16, bf16 or fp8 with the reference lane"
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    quantization = quantization_block(pretrained)
    moe = pretrained.get("moe")
    modes = moe.get("normalization_mode") if isinstance(moe, Mapping) else None
    algorithm, cache = quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo")
    refused = {
        f"dtype {pretrained.get('dtype')!r}": pretrained.get("dtype") not in ("float32", "float16", "bfloat16"),
        f"quantisation {algorithm!r}": algorithm not in (None, "FP8"),
        f"quantisation {cache!r} of the KV cache": cache not in (None, "FP8"),
        f"normalisation {modes!r} of a mixture of experts": modes not in (None, _NONE, _RENORMALISE),
        "an embedding that is split over ranks": bool(pretrained.get("use_parallel_embedding")),
        f"activation {pretrained.get('hidden_act')!r}": pretrained.get("hidden_act") not in ("silu", "swiglu"),
        f"rotary scaling {kind!r}": kind not in ROTARY_KINDS,
        f"positions {pretrained.get('position_embedding_type')!r}": pretrained.get(
            "position_embedding_type", "rope_gpt_neox"
        )
        not in _POSITIONS,
    }
    for what, bad in refused.items():
        if bad:
            raise Failure(f"the reference lane does not execute {what}", hint)


def engine_limits(config: Mapping[str, Json]) -> EngineLimits:
    """Limits of an engine config; the build's `max_seq_len` includes the room for drafts, ours does not."""
    build, own = section(config, "build_config"), section(config, "draftyard")
    max_draft_len = integer(build, "max_draft_len", 0)
    max_batch_size = integer(build, "max_batch_size")
    max_seq_len = integer(build, "max_seq_len") - max_draft_len
    return EngineLimits(
        max_batch_size=max_batch_size,
        max_input_len=integer(build, "max_input_len"),
        max_seq_len=max_seq_len,
        max_num_tokens=integer(build, "max_num_tokens"),
        max_draft_len=max_draft_len,
        kv_cache_tokens=integer(own, "kv_cache_tokens", max_batch_size * max_seq_len),
        prefill_chunk_tokens=max(integer(own, "prefill_chunk_tokens", PREFILL_CHUNK_TOKENS), 1),
    )


def speculator_choice(config: Mapping[str, Json]) -> SpeculatorChoice:
    """The speculator an engine was built with."""
    block = section(section(config, "draftyard"), "speculator")
    try:
        kind = SpeculatorKind(str(block.get("kind")))
    except ValueError:
        raise Failure(f"unknown speculator {block.get('kind')!r}", REBUILD, ExitCode.ENVIRONMENT) from None
    if kind is SpeculatorKind.LOOKAHEAD:
        hint = f"use {', '.join(one for one in SpeculatorKind if one is not kind)}"
        raise Failure(f"the reference lane does not execute the speculator {kind}", hint)
    max_draft_len = integer(block, "max_draft_len", 0)
    return SpeculatorChoice(
        kind=kind,
        max_draft_len=max_draft_len,
        min_match=integer(block, "min_match", 1),
        max_match=integer(block, "max_match", 3),
        depth=integer(block, "depth", max_draft_len),
        choices=_choices(block.get("choices")),
        dynamic_top_k=None if block.get("dynamic_top_k") is None else integer(block, "dynamic_top_k"),
        max_non_leaves_per_layer=integer(block, "max_non_leaves_per_layer", 10),
        heads=integer(block, "heads", 0),
    )


def _choices(value: Json) -> tuple[tuple[int, ...], ...] | None:
    """Paths of a static tree; None where there is none."""
    if value is None:
        return None
    paths = [path for path in value if isinstance(path, list)] if isinstance(value, list) else []
    ranks = [[rank for rank in path if isinstance(rank, int) and not isinstance(rank, bool)] for path in paths]
    if ranks != value or not ranks:
        raise Failure(
            f"engine config.json: choices must be paths such as [[0], [0, 0], [1]], not {value!r}",
            REBUILD,
            ExitCode.ENVIRONMENT,
        )
    return tuple(tuple(path) for path in ranks)
