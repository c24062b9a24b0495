"""Model directories whose weights are FP8 already, in the layouts of several exporters."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tests.fakes.tiny_model import config_of, random_weights, write_tokenizer

TENSOR = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
COMPRESSED: Mapping[str, object] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": TENSOR, "input_activations": TENSOR}},
    "ignore": ["lm_head"],
}
STATIC: Mapping[str, object] = {"quant_method": "fp8", "activation_scheme": "static"}
UNIFIED: Mapping[str, object] = {
    "producer": {"name": "modelopt", "version": "0.37.0"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]},
}


def fp8_tensors(seed: int = 0, cached: bool = False) -> dict[str, torch.Tensor]:
    """Every projection in FP8 under a scale of its own, and scales of its input; the rest in float16."""
    tensors: dict[str, torch.Tensor] = {}
    for place, (name, value) in enumerate(random_weights(config_of(), seed).items()):
        weight = torch.from_numpy(value)
        if not name.endswith("_proj.weight"):
            tensors[name] = weight.half()
            continue
        scale = weight.abs().max() / 448
        tensors[name] = (weight / scale).to(torch.float8_e4m3fn)
        stem = name.removesuffix("weight")
        tensors[f"{stem}weight_scale"] = scale.reshape(1)
        tensors[f"{stem}input_scale"] = torch.tensor(0.01 + 0.001 * place)
    if cached:
        for layer in range(3):
            attention = f"model.layers.{layer}.self_attn"
            tensors[f"{attention}.k_proj.k_scale"] = torch.tensor(2.0 + layer)
            tensors[f"{attention}.v_proj.v_scale"] = torch.tensor(0.5)
    return tensors


def write_fp8_model(
    directory: Path,
    tensors: Mapping[str, torch.Tensor] | None = None,
    block: Mapping[str, object] | None = COMPRESSED,
    unified: Mapping[str, object] | None = None,
) -> Path:
    """`block` goes into config.json, `unified` into ModelOpt's own file."""
    directory.mkdir(parents=True, exist_ok=True)
    config = config_of(torch_dtype="float16")
    if block is not None:
        config["quantization_config"] = dict(block)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3], "bos_token_id": 1}))
    if unified is not None:
        (directory / "hf_quant_config.json").write_text(json.dumps(unified))
    save_file(dict(fp8_tensors() if tensors is None else tensors), directory / "model.safetensors")
    write_tokenizer(directory)
    return directory


def dequantised(tensors: Mapping[str, torch.Tensor], name: str) -> np.ndarray:
    scale = tensors[f"{name.removesuffix('weight')}weight_scale"]
    return (tensors[name].float() * scale).numpy()
