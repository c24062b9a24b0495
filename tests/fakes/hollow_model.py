"""Model directories of the sizes that people deploy: real settings and tensor headers, and holes for weights."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from tests.fakes.tiny_model import write_tokenizer

from draftyard.rules.families.family import source_tensors
from draftyard.rules.families.known_families import FAMILIES

_LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": _LLAMA3,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "eos_token_id": 2,
}


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, head_size: int) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_size,
    }


# Settings as published with the models.
CONFIGS: Mapping[str, dict[str, object]] = {
    "Llama-3.3-70B-Instruct": {**_LLAMA, **_sizes(8192, 28672, 80, 64, 8, 128)},
    "Llama-3.1-8B-Instruct": {**_LLAMA, **_sizes(4096, 14336, 32, 32, 8, 128)},
    "Llama-3.2-1B-Instruct": {
        **_LLAMA,
        **_sizes(2048, 8192, 16, 32, 8, 64),
        "rope_scaling": {**_LLAMA3, "factor": 32.0},
        "tie_word_embeddings": True,
    },
    "Qwen2.5-72B-Instruct": {
        **_LLAMA,
        **_sizes(8192, 29568, 80, 64, 8, 128),
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 152064,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
    },
    "Qwen2.5-0.5B-Instruct": {
        **_LLAMA,
        **_sizes(896, 4864, 24, 14, 2, 64),
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    "Mixtral-8x7B-Instruct-v0.1": {
        **_LLAMA,
        **_sizes(4096, 14336, 32, 32, 8, 128),
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "max_position_embeddings": 32768,
    },
    "Mistral-7B-Instruct-v0.2": {
        **_LLAMA,
        **_sizes(4096, 14336, 32, 32, 8, 128),
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "vocab_size": 32000,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "max_position_embeddings": 32768,
    },
}


def write_hollow_model(directory: Path, name: str) -> Path:
    """One of the models above in `directory`; its weights are 16-bit holes."""
    config = CONFIGS[name]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    family = FAMILIES[str(config["model_type"])]
    network = family.resolve(config).network
    assert network is not None
    write_hollow_tensors(directory / "model.safetensors", source_tensors(family.rules(network)))
    write_tokenizer(directory)
    return directory


def write_hollow_medusa(directory: Path, target: str, heads: int = 4) -> Path:
    """Medusa heads of one residual block each, without a vocabulary projection of their own."""
    hidden = int(str(CONFIGS[target]["hidden_size"]))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"medusa_num_heads": heads, "medusa_num_layers": 1}))
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        shapes[f"{head}.0.linear.weight"] = (hidden, hidden)
        shapes[f"{head}.0.linear.bias"] = (hidden,)
    write_hollow_tensors(directory / "medusa_lm_head.safetensors", shapes)
    return directory


def write_hollow_eagle(directory: Path, target: str) -> Path:
    """An EAGLE network of one layer of the target's sizes, with the target's embedding and head."""
    config = {**CONFIGS[target], "num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle"], "bias": False}
    hidden, inner = int(str(config["hidden_size"])), int(str(config["intermediate_size"]))
    rows = int(str(config["num_attention_heads"])) * int(str(config["head_dim"]))
    kv_rows = int(str(config["num_key_value_heads"])) * int(str(config["head_dim"]))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    layer = "layers.0."
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        f"{layer}self_attn.q_proj.weight": (rows, hidden),
        f"{layer}self_attn.k_proj.weight": (kv_rows, hidden),
        f"{layer}self_attn.v_proj.weight": (kv_rows, hidden),
        f"{layer}self_attn.o_proj.weight": (hidden, rows),
        f"{layer}mlp.gate_proj.weight": (inner, hidden),
        f"{layer}mlp.up_proj.weight": (inner, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, inner),
        f"{layer}post_attention_layernorm.weight": (hidden,),
    }
    write_hollow_tensors(directory / "model.safetensors", shapes)
    return directory


def write_hollow_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]], item_bytes: int = 2) -> None:
    """A safetensors file of BF16 tensors: the header is there, the weights are a hole."""
    header: dict[str, object] = {}
    offset = 0
    for name, shape in shapes.items():
        size = item_bytes
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
