"""Checkpoints beside those of nvidia-modelopt 0.47.0: the same names, shapes, types, bytes, scales and settings.

Mixtral is not among them: that release cannot export the stacked experts of transformers 5.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.fakes.fp8_checkpoints import WISHES, Cut, calibrated, fp8_checkpoint
from tests.fakes.modelopt_samples import SAMPLES
from tests.fakes.tiny_model import write_tokenizer
from tests.house.source_map import ROOT
from tests.verbs.test_convert import converted

from draftyard.nouns.activation_ranges import ActivationRanges
from draftyard.nouns.network import Precision
from draftyard.verbs.fp8_conversion import read_ranges

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
LAYERS = range(2)
PLACES = {
    "attention.qkv": "self_attn.q_proj",
    "attention.dense": "self_attn.o_proj",
    "mlp.fc": "mlp.gate_proj",
    "mlp.gate": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}

# Fields of config.json that differ, each with its reason; every other field is the same.
THEIRS_ALONE = {
    "producer": "names the tool; receipts say that here",
    "share_embedding_table": "a key of old releases, ignored since 0.17; tie_word_embeddings says it here",
    "residual_mlp": "false is the default",
    "bias": "ignored; attn_bias and mlp_bias count",
    "rotary_pct": "1.0 is the default",
    "rank": "dropped by the loader: a config is that of all ranks",
    "decoder": "ignored",
    "rmsnorm": "ignored",
    "lm_head_bias": "ignored: no family here has one",
}
OURS_ALONE = {
    "attn_bias": "LLaMAConfig and QWenConfig read it; theirs relies on a default that is true for Qwen",
    "mlp_bias": "read by LLaMAConfig; false is the default",
    "qk_layernorm": "QWenConfig needs it for Qwen3",
    "qwen_type": "QWenConfig needs it; quantize.py of TensorRT-LLM adds it to theirs",
    "rotary_base": "LLaMAConfig reads it; theirs leaves it out when transformers keeps it in rope_parameters",
    "rotary_scaling": "as rotary_base; quantize.py of TensorRT-LLM adds it to theirs",
    "tie_word_embeddings": "decides whether lm_head.weight is stored",
    "sliding_window": "kept for lanes that bound the sequence by it",
}
DIFFERENT = {
    "logits_dtype": "theirs is the dtype (float16 even for bfloat16), ours TensorRT-LLM's default, float32",
    "use_parallel_embedding": "theirs splits the embedding over ranks, ours repeats it; both load",
    "quantization": "theirs lists lm_head alone, ours every module that TensorRT-LLM's own default leaves out",
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the other tool wrote, made in a process of its own: it changes transformers where it is imported."""
    root = tmp_path_factory.mktemp("modelopt")
    program = ROOT / "tests" / "fakes" / "modelopt_exports.py"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(program), str(root)], capture_output=True, text=True, timeout=150, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for family in FAMILIES:
        write_tokenizer(root / family / "model")
    return root


def theirs(directory: Path, rank: int = 0) -> dict[str, torch.Tensor]:
    return load_file(directory / f"rank{rank}.safetensors")


def their_ranges(directory: Path) -> ActivationRanges:
    measured = json.loads((directory / "ranges.json").read_text())
    inputs = {
        f"transformer.layers.{layer}.{module}": (measured[f"model.layers.{layer}.{place}.input_quantizer"],)
        for layer in LAYERS
        for module, place in PLACES.items()
    }
    keys, values = (
        tuple(measured[f"model.layers.{layer}.self_attn.{one}_bmm_quantizer"] for layer in LAYERS) for one in "kv"
    )
    return ActivationRanges(6, 72, inputs, keys, values)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(bits(found[name]), bits(tensor)), name


def without_single_cache_scales(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """TensorRT-LLM merges the scales of keys and of values; theirs writes them beside what they come to."""
    single = ("k_cache_scaling_factor", "v_cache_scaling_factor")
    return {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] not in single}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plain_route_gives_the_same_bits(exports: Path, tmp_path: Path, family: str) -> None:
    converted(exports / family / "model", tmp_path / "ours", Precision.FP16)
    same(load_file(tmp_path / "ours" / "rank0.safetensors"), theirs(exports / family / "plain"))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fp8_route_gives_the_same_bytes_and_scales(exports: Path, tmp_path: Path, family: str) -> None:
    directory = exports / family
    fp8_checkpoint(directory / "model", tmp_path / "ours", their_ranges(directory))
    found = load_file(tmp_path / "ours" / "rank0.safetensors")
    assert found["transformer.layers.0.mlp.fc.weight"].dtype is torch.float8_e4m3fn
    same(found, without_single_cache_scales(theirs(directory / "fp8")))


def test_two_ranks_hold_the_same_halves(exports: Path, tmp_path: Path) -> None:
    directory = exports / "llama"
    fp8_checkpoint(directory / "model", tmp_path / "ours", their_ranges(directory), Cut(2, 1))
    embedding = "transformer.vocab_embedding.weight"
    for rank in range(2):
        expected = without_single_cache_scales(theirs(directory / "fp8-tp2", rank))
        found = load_file(tmp_path / "ours" / f"rank{rank}.safetensors")
        half = expected.pop(embedding)
        assert torch.equal(found.pop(embedding)[rank * 25 : (rank + 1) * 25], half)
        same(found, expected)


def test_its_unified_export_is_taken_over(exports: Path, tmp_path: Path) -> None:
    """Its own checkpoint but for some FP8 bytes: that export divides in float16, so they round otherwise."""
    directory = exports / "llama"
    write_tokenizer(directory / "unified")
    fp8_checkpoint(directory / "unified", tmp_path / "ours", tmp_path / "unused")
    found = load_file(tmp_path / "ours" / "rank0.safetensors")
    expected = without_single_cache_scales(theirs(directory / "fp8"))
    stored = load_file(directory / "unified" / "model.safetensors")
    for name in [name for name, tensor in expected.items() if tensor.dtype is torch.float8_e4m3fn]:
        layer = name.split(".")[2]
        place = PLACES[name.removeprefix(f"transformer.layers.{layer}.").removesuffix(".weight")]
        places = [f"self_attn.{one}_proj" for one in "qkv"] if place == "self_attn.q_proj" else [place]
        parts = [stored[f"model.layers.{layer}.{one}.weight"] for one in places]
        ours, other = found.pop(name), expected.pop(name)
        assert torch.equal(bits(ours), torch.cat([bits(part) for part in parts]))
        assert (bits(ours).int() - bits(other).int()).abs().max() <= 1
        assert (bits(ours) == bits(other)).float().mean() > 0.99
    same(found, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_calibrators_measure_the_same(exports: Path, tmp_path: Path, family: str) -> None:
    directory = exports / family
    (tmp_path / "texts").write_text("\n".join(" ".join(f"w{token}" for token in sample) for sample in SAMPLES))
    found = read_ranges(calibrated(directory / "model", tmp_path / "c", tmp_path / "texts"))
    expected = their_ranges(directory)
    assert (found.samples, found.tokens) == (expected.samples, expected.tokens)
    for module, largest in expected.inputs.items():
        assert found.inputs[module] == pytest.approx(largest, rel=1e-4), module
    assert found.keys == pytest.approx(expected.keys, rel=1e-4)
    assert found.values == pytest.approx(expected.values, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("route", ["plain", "fp8"])
def test_settings_are_the_same_but_for_known_ones(exports: Path, tmp_path: Path, family: str, route: str) -> None:
    directory = exports / family
    if route == "plain":
        converted(directory / "model", tmp_path / "ours", Precision.FP16)
    else:
        fp8_checkpoint(directory / "model", tmp_path / "ours", their_ranges(directory))
    ours, other = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "ours", directory / route))
    assert set(other) - set(ours) <= set(THEIRS_ALONE)
    assert set(ours) - set(other) <= set(OURS_ALONE)
    different = {field for field in set(ours) & set(other) if ours[field] != other[field]}
    assert different <= set(DIFFERENT)
    assert ours["rotary_base"] == 10000.0 and ours["rotary_scaling"] is None
    if route == "fp8":
        block, their_block = ours["quantization"], other["quantization"]
        assert set(block) == set(their_block)
        assert block["quant_algo"] == their_block["quant_algo"] == "FP8"
        assert block["kv_cache_quant_algo"] == their_block["kv_cache_quant_algo"] == "FP8"
        assert their_block["exclude_modules"] == ["lm_head"]
        assert list(WISHES.exclude_modules or ()) == block["exclude_modules"]
