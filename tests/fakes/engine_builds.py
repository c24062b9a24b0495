"""Builds of engines of the sizes that people deploy, as values."""

from collections.abc import Mapping
from dataclasses import replace

from draftyard.nouns.engine_build import BuildMode, EngineBuild
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.network import Network, Precision, RotaryScaling
from draftyard.rules.trtllm import checkpoint_config

LLAMA_70B = Network(
    family="llama",
    architecture="LlamaForCausalLM",
    hidden_size=8192,
    intermediate_size=28672,
    layers=80,
    heads=64,
    kv_heads=8,
    head_size=128,
    vocab_size=128256,
    max_position_embeddings=131072,
    norm_epsilon=1e-5,
    rotary_base=500000.0,
    hidden_act="silu",
    tied_head=False,
    rotary_scaling=RotaryScaling(
        "llama3",
        (
            ("factor", 8.0),
            ("high_freq_factor", 4.0),
            ("low_freq_factor", 1.0),
            ("original_max_position_embeddings", 8192),
        ),
    ),
)
LLAMA_1B = replace(
    LLAMA_70B, hidden_size=2048, intermediate_size=8192, layers=16, heads=32, head_size=64, tied_head=True
)
EXTRA: Mapping[str, dict[str, object]] = {
    "medusa": {"architecture": "MedusaForCausalLM", "num_medusa_heads": 4, "num_medusa_layers": 1, "max_draft_len": 63},
    "eagle": {
        "architecture": "EagleForCausalLM",
        "num_eagle_layers": 4,
        "max_non_leaves_per_layer": 10,
        "max_draft_len": 63,
    },
}
MODES = {
    "plain": (BuildMode.NONE, 0),
    "external": (BuildMode.DRAFT_TOKENS_EXTERNAL, 5),
    "draft": (BuildMode.NONE, 0),
    "medusa": (BuildMode.MEDUSA, 63),
    "eagle": (BuildMode.EAGLE, 63),
    "lookahead": (BuildMode.LOOKAHEAD, 83),
}


def checkpoint(network: Network, precision: str, tp_size: int, kind: str = "plain") -> dict[str, object]:
    """A checkpoint's config; FP8 with an FP8 KV cache."""
    config = dict(checkpoint_config(network, Precision.FP16, tp_size, 1))
    if precision == "fp8":
        config["quantization"] = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    return {**config, **EXTRA.get(kind, {})}


def engine_build(
    kind: str = "plain", precision: str = "fp16", gpu: Gpu = Gpu.H100_SXM, tp_size: int = 2
) -> EngineBuild:
    """The build of one engine of Llama-3.3-70B, or of the 1B draft."""
    mode, draft = MODES[kind]
    network = LLAMA_1B if kind == "draft" else LLAMA_70B
    return EngineBuild(
        checkpoint=checkpoint(network, precision, tp_size, kind),
        gpu=gpu,
        mode=mode,
        max_batch_size=8 if kind == "medusa" else 64,
        max_input_len=7168,
        max_seq_len=8192,
        max_num_tokens=8192,
        max_draft_len=draft,
        draft_depth=min(draft, 4),
    )
