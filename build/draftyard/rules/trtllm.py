"""TensorRT-LLM's file formats: the checkpoint's `config.json`, the tensors it promises, an engine's `config.json`."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import MixtureOfExperts, Network, Precision, RotaryScaling
from draftyard.nouns.recipe import Limits, Speculator
from draftyard.nouns.tensor import TensorType
from draftyard.rules.quantisation import Expected as Expected
from draftyard.rules.quantisation import Fp8Form, with_scales
from draftyard.rules.shards import kv_heads_per_rank, padded_vocabulary, stage_layers
from draftyard.rules.trees import resolved_tree

DTYPES = {Precision.FP32: "float32", Precision.FP16: "float16", Precision.BF16: "bfloat16"}
TENSOR_TYPES = {"float32": TensorType.F32, "float16": TensorType.F16, "bfloat16": TensorType.BF16}

# SpeculativeDecodingMode of TensorRT-LLM 1.2.1, as stored in an engine's build_config.
MODE_NONE = 1
MODE_DRAFT_TOKENS_EXTERNAL = 2
_MODES = {SpeculatorKind.MEDUSA: 4, SpeculatorKind.EAGLE: 32}

# What the C++ loader reads (runtime/gptJsonConfig.cpp); the values are trtllm-build's defaults.
_PLUGINS: dict[str, Json] = {
    "context_fmha": True,
    "gpt_attention_plugin": "auto",
    "manage_weights": False,
    "paged_kv_cache": True,
    "remove_input_padding": True,
    "tokens_per_block": 32,
    "use_paged_context_fmha": True,
}


def checkpoint_config(
    network: Network, precision: Precision, tp_size: int, pp_size: int, fp8: Fp8Form | None = None
) -> dict[str, Json]:
    """The complete `config.json` of a checkpoint (TensorRT-LLM 1.2.1, `PretrainedConfig` and its Llama/Qwen children).

    Counts are global, `vocab_size` is unpadded. The one place for every architecture field, quantised or not: FP8 needs
    its form (ValueError without) and differs by `dtype`, that of what is not quantised, and `quantization` alone.
    """
    if fp8 is not None:
        return {**checkpoint_config(network, fp8.rest, tp_size, pp_size), "quantization": fp8.block()}
    if precision not in DTYPES:
        raise ValueError(f"{precision} is not made by conversion alone")
    scaling = network.rotary_scaling
    config: dict[str, Json] = {
        "architecture": network.architecture,
        "dtype": DTYPES[precision],
        "logits_dtype": "float32",
        "hidden_size": network.hidden_size,
        "num_hidden_layers": network.layers,
        "num_attention_heads": network.heads,
        "num_key_value_heads": network.kv_heads,
        "head_size": network.head_size,
        "intermediate_size": network.intermediate_size,
        "vocab_size": network.vocab_size,
        "max_position_embeddings": network.max_position_embeddings,
        "hidden_act": network.hidden_act,
        "norm_epsilon": network.norm_epsilon,
        "position_embedding_type": "long_rope" if scaling and scaling.kind == "longrope" else "rope_gpt_neox",
        "rotary_base": network.rotary_base,
        "rotary_scaling": _rotary_scaling(scaling),
        "attn_bias": network.qkv_bias,
        "mlp_bias": network.mlp_bias,
        "qk_layernorm": network.qk_norm,
        "tie_word_embeddings": network.tied_head,
        "mapping": {"world_size": tp_size * pp_size, "tp_size": tp_size, "pp_size": pp_size},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
    }
    return {**config, **_family_keys(network)}


def reference_engine_config(
    *,
    checkpoint: Mapping[str, Json],
    limits: Limits,
    speculator: Speculator | None,
    kv_cache_tokens: int,
    tensorrt_llm_version: str,
    heads: int = 0,
) -> dict[str, Json]:
    """The `config.json` of an engine of the reference lane, in TensorRT-LLM's schema plus a `draftyard` block.

    With speculation the sizes grow as in trtllm-build 1.2.1: `max_seq_len` by the draft length, `max_num_tokens` to at
    least `max_batch_size` x (draft length + 1). `heads` are the Medusa heads in use.
    """
    max_draft_len = speculator.max_draft_len if speculator else 0
    step_tokens = limits.max_batch_size * (max_draft_len + 1)
    return {
        "version": tensorrt_llm_version,
        "pretrained_config": dict(checkpoint),
        "build_config": {
            "max_input_len": limits.max_input_len,
            "max_seq_len": limits.max_seq_len + max_draft_len,
            "max_batch_size": limits.max_batch_size,
            "max_num_tokens": max(limits.max_num_tokens, step_tokens) if speculator else limits.max_num_tokens,
            "max_beam_width": 1,
            "max_draft_len": max_draft_len,
            "max_prompt_embedding_table_size": 0,
            "speculative_decoding_mode": _mode(speculator),
            "kv_cache_type": "PAGED",
            "gather_context_logits": False,
            "gather_generation_logits": False,
            "plugin_config": {**_PLUGINS, "dtype": checkpoint["dtype"]},
        },
        "draftyard": {
            "lane": "reference",
            "speculator": _speculator_block(speculator, heads),
            "kv_cache_tokens": kv_cache_tokens,
            "threads": 0,
        },
    }


def draft_engine_config(target_engine: Mapping[str, Json], draft_checkpoint: Mapping[str, Json]) -> dict[str, Json]:
    """The `config.json` of the draft beside a target's engine: the target's sizes, no speculation of its own."""
    build, own = target_engine["build_config"], target_engine["draftyard"]
    if not isinstance(build, Mapping) or not isinstance(own, Mapping):
        raise ValueError("build_config and draftyard of an engine config must be objects")
    return {
        **target_engine,
        "pretrained_config": dict(draft_checkpoint),
        "build_config": {
            **build,
            "max_draft_len": 0,
            "speculative_decoding_mode": MODE_NONE,
            "plugin_config": {**_PLUGINS, "dtype": draft_checkpoint["dtype"]},
        },
        "draftyard": {**own, "speculator": _speculator_block(None, 0)},
    }


def expected_tensors(config: Mapping[str, Json], rank: int) -> Expected:
    """Name -> (element type, shape) of every tensor that the file of `rank` must hold, from the config alone.

    Written independently of the conversion tables, after the model definitions of TensorRT-LLM 1.2.1, so that the two
    check each other. Raises ValueError when a field is absent or of the wrong kind.
    """
    mapping = object_of(config, "mapping")
    tp_size, pp_size = integer_of(mapping, "tp_size"), integer_of(mapping, "pp_size")
    pp_rank = rank // tp_size
    stage = stage_layers(integer_of(config, "num_hidden_layers"), pp_size, pp_rank)
    kind = TENSOR_TYPES[str(config["dtype"])]
    hidden_size, vocabulary = integer_of(config, "hidden_size"), integer_of(config, "vocab_size")
    shapes: dict[str, tuple[int, ...]] = {}
    if pp_rank == 0:
        shapes["transformer.vocab_embedding.weight"] = (vocabulary, hidden_size)
    for local in range(len(stage)):
        for name, shape in layer_shapes(config, tp_size).items():
            shapes[f"transformer.layers.{local}.{name}"] = shape
    if pp_rank == pp_size - 1:
        shapes["transformer.ln_f.weight"] = (hidden_size,)
        if not (config.get("tie_word_embeddings") and tp_size == pp_size == 1):
            shapes["lm_head.weight"] = (padded_vocabulary(vocabulary, tp_size) // tp_size, hidden_size)
    plain = {
        name: (TensorType.F32 if name.endswith("mlp.router.weight") else kind, shape) for name, shape in shapes.items()
    }
    return with_scales(config, plain)


def world_size(config: Mapping[str, Json]) -> int:
    """Ranks of a checkpoint; ValueError when the mapping contradicts itself."""
    mapping = object_of(config, "mapping")
    ranks = integer_of(mapping, "tp_size") * integer_of(mapping, "pp_size")
    if integer_of(mapping, "world_size") != ranks:
        raise ValueError(f"mapping says world_size {mapping['world_size']}, but tp_size x pp_size is {ranks}")
    return ranks


def layer_shapes(config: Mapping[str, Json], tp_size: int) -> dict[str, tuple[int, ...]]:
    """Name within a layer -> shape on one rank, of every tensor of an ordinary decoder layer with this config."""
    hidden_size, head_size = integer_of(config, "hidden_size"), integer_of(config, "head_size")
    query_rows = integer_of(config, "num_attention_heads") // tp_size * head_size
    kv_rows = kv_heads_per_rank(integer_of(config, "num_key_value_heads"), tp_size) * head_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden_size,),
        "post_layernorm.weight": (hidden_size,),
        "attention.qkv.weight": (query_rows + 2 * kv_rows, hidden_size),
        "attention.dense.weight": (hidden_size, query_rows),
    }
    if config.get("attn_bias"):
        shapes["attention.qkv.bias"] = (query_rows + 2 * kv_rows,)
        # A checkpoint with heads has their architecture; its base is then told by this key alone.
        if not (str(config["architecture"]).startswith("Qwen") or "qwen_type" in config):
            shapes["attention.dense.bias"] = (hidden_size,)
    if config.get("qk_layernorm"):
        shapes["attention.q_layernorm.weight"] = shapes["attention.k_layernorm.weight"] = (head_size,)
    return {**shapes, **_feed_forward_shapes(config, hidden_size, tp_size)}


def _feed_forward_shapes(config: Mapping[str, Json], hidden_size: int, tp_size: int) -> dict[str, tuple[int, ...]]:
    rows = integer_of(config, "intermediate_size") // tp_size
    if "moe" in config:
        experts = integer_of(object_of(config, "moe"), "num_experts")
        return {
            "mlp.router.weight": (experts, hidden_size),
            "mlp.fc.weight": (experts, 2 * rows, hidden_size),
            "mlp.proj.weight": (experts, hidden_size, rows),
        }
    shapes: dict[str, tuple[int, ...]] = {
        "mlp.fc.weight": (rows, hidden_size),
        "mlp.gate.weight": (rows, hidden_size),
        "mlp.proj.weight": (hidden_size, rows),
    }
    if config.get("mlp_bias"):
        shapes |= {"mlp.fc.bias": (rows,), "mlp.gate.bias": (rows,), "mlp.proj.bias": (hidden_size,)}
    return shapes


def _family_keys(network: Network) -> dict[str, Json]:
    keys: dict[str, Json] = {}
    if network.family.startswith("qwen"):
        keys["qwen_type"] = network.family
    if network.sliding_window is not None:
        keys["sliding_window"] = network.sliding_window
    if network.experts is not None:
        keys["hidden_act"] = "swiglu"
        keys["moe"] = _moe_block(network.experts)
    return keys


def _moe_block(experts: MixtureOfExperts) -> dict[str, Json]:
    return {
        "num_experts": experts.experts,
        "top_k": experts.experts_per_token,
        "normalization_mode": 1 if experts.normalise else 0,
    }


def _rotary_scaling(scaling: RotaryScaling | None) -> Json:
    """All numbers of the source, unchanged; the kind under both spellings, because readers know one or the other."""
    if scaling is None:
        return None
    return {"type": scaling.kind, "rope_type": scaling.kind, **{key: _json(value) for key, value in scaling.values}}


def _json(value: float | int | bool | tuple[float, ...]) -> Json:
    return list(value) if isinstance(value, tuple) else value


def _mode(speculator: Speculator | None) -> int:
    """What TensorRT-LLM has no mode for verifies drafts that come from outside its network."""
    return MODE_NONE if speculator is None else _MODES.get(speculator.kind, MODE_DRAFT_TOKENS_EXTERNAL)


def _speculator_block(speculator: Speculator | None, heads: int) -> dict[str, Json]:
    """What the reference lane is told: nodes at most, levels, and the tree."""
    if speculator is None:
        return {"kind": SpeculatorKind.NONE.value, "max_draft_len": 0}
    block: dict[str, Json] = {"kind": speculator.kind.value, "max_draft_len": speculator.max_draft_len}
    if speculator.kind is SpeculatorKind.NGRAM:
        return {**block, "min_match": speculator.min_match, "max_match": speculator.max_match}
    if speculator.kind in (SpeculatorKind.DRAFT_TARGET, SpeculatorKind.LOOKAHEAD):
        return block
    tree = resolved_tree(speculator, heads)
    block["depth"] = max(map(len, tree)) if tree else speculator.draft_depth
    block["choices"] = [list(path) for path in tree] if tree else None
    if speculator.kind is SpeculatorKind.MEDUSA:
        return {**block, "heads": heads}
    if speculator.kind in (SpeculatorKind.EAGLE, SpeculatorKind.EAGLE3):
        block["dynamic_top_k"] = speculator.dynamic_tree_max_top_k
    if speculator.kind is SpeculatorKind.EAGLE3:
        block["max_non_leaves_per_layer"] = speculator.dynamic_tree_max_top_k or 1
    if speculator.kind is SpeculatorKind.EAGLE:
        block["max_non_leaves_per_layer"] = speculator.max_non_leaves_per_layer
    return block


def object_of(config: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    """A nested object of a config; ValueError when it is absent or of another kind."""
    value = config.get(key)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is {value!r}, not an object")
    return value


def integer_of(config: Mapping[str, Json], key: str) -> int:
    """A whole number of a config; ValueError when it is absent or of another kind."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} is {value!r}, not a whole number")
    return value
