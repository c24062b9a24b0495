"""FP8 checkpoints from 16-bit sources: every byte against torch, every rank, both routes field by field."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.fakes.fp8_checkpoints import WISHES, Cut, fp8_checkpoint, fp8_step, made_up_ranges, without_keys
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.verbs.test_convert import converted, step_for

from draftyard.nouns.errors import Failure
from draftyard.nouns.network import Precision
from draftyard.nouns.recipe import KvScale, Quantisation, UncalibratedExperts
from draftyard.rules.trtllm import expected_tensors

LAYER = "transformer.layers.0"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def by_torch(*parts: np.ndarray) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Each part in FP8 under the scale of them all, as bytes, and the scale [1]: the format's description in torch."""
    tensors = [torch.from_numpy(part).float() for part in parts]
    scale = torch.stack([tensor.abs().max() for tensor in tensors]).max().reshape(1) / 448
    return [(tensor / scale).to(torch.float8_e4m3fn).view(torch.uint8) for tensor in tensors], scale


def ranks(directory: Path) -> list[dict[str, torch.Tensor]]:
    files = sorted(directory.glob("rank*.safetensors"), key=lambda path: int(path.stem.removeprefix("rank")))
    return [load_file(path) for path in files]


def codes(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.dtype is torch.float8_e4m3fn
    return tensor.view(torch.uint8)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_every_quantised_byte_is_torchs(tmp_path: Path, kind: type) -> None:
    weights = {name: value.astype(kind) for name, value in random_weights(config_of()).items()}
    directory = write_model(tmp_path / "m", config_of(), weights)
    fp8_checkpoint(directory, tmp_path / "c")
    (tensors,) = ranks(tmp_path / "c")
    for layer in range(3):
        here, there = f"transformer.layers.{layer}", f"model.layers.{layer}"
        named = {name.removeprefix(f"{there}."): value for name, value in weights.items() if name.startswith(there)}
        groups = {
            ("attention.qkv",): [f"self_attn.{name}_proj.weight" for name in "qkv"],
            ("attention.dense",): ["self_attn.o_proj.weight"],
            ("mlp.fc", "mlp.gate"): ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
            ("mlp.proj",): ["mlp.down_proj.weight"],
        }
        for modules, parts in groups.items():
            found, scale = by_torch(*(named[part] for part in parts))
            held = [codes(tensors[f"{here}.{module}.weight"]) for module in modules]
            assert torch.equal(torch.cat(held), torch.cat(found))
            for module in modules:
                assert torch.equal(tensors[f"{here}.{module}.weights_scaling_factor"], scale)


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 3), (8, 2)])
def test_ranks_hold_shares_of_the_same_bytes_under_the_same_scales(tmp_path: Path, tp_size: int, pp_size: int) -> None:
    config = config_of(num_attention_heads=8, hidden_size=64)
    directory = write_model(tmp_path / "m", config, random_weights(config))
    fp8_checkpoint(directory, tmp_path / "whole")
    fp8_checkpoint(directory, tmp_path / "cut", cut=Cut(tp_size, pp_size))
    (whole,) = ranks(tmp_path / "whole")
    files = ranks(tmp_path / "cut")
    first = 0
    for stage in range(pp_size):
        stage_files = files[stage * tp_size : (stage + 1) * tp_size]
        layers = 3 // pp_size + (1 if stage < 3 % pp_size else 0)
        for local in range(layers):
            for name in (name for name in whole if name.startswith(f"transformer.layers.{first + local}.")):
                pieces = [file[name.replace(f".{first + local}.", f".{local}.", 1)] for file in stage_files]
                if name.endswith("scaling_factor"):
                    assert all(torch.equal(piece, whole[name]) for piece in pieces)
                elif name.endswith(("fc.weight", "gate.weight")):
                    assert torch.equal(torch.cat([codes(piece) for piece in pieces]), codes(whole[name]))
                elif name.endswith(("dense.weight", "proj.weight")):
                    assert torch.equal(torch.cat([codes(piece) for piece in pieces], 1), codes(whole[name]))
                elif name.endswith("qkv.weight"):
                    queries = torch.cat([codes(piece)[: 64 // tp_size] for piece in pieces])
                    assert torch.equal(queries, codes(whole[name])[:64])
        first += layers


def test_the_head_is_in_the_last_stage_and_the_embedding_in_the_first(tmp_path: Path) -> None:
    """Row 104: 16 ranks, 8 in each of two stages."""
    config = config_of(num_attention_heads=8, hidden_size=64)
    directory = write_model(tmp_path / "m", config, random_weights(config))
    fp8_checkpoint(directory, tmp_path / "c", cut=Cut(8, 2))
    files = ranks(tmp_path / "c")
    assert [rank for rank, file in enumerate(files) if "lm_head.weight" in file] == list(range(8, 16))
    assert [rank for rank, file in enumerate(files) if "transformer.vocab_embedding.weight" in file] == list(range(8))
    written = json.loads((tmp_path / "c" / "config.json").read_text())
    for rank, file in enumerate(files):
        assert set(file) == set(expected_tensors(written, rank))


@pytest.mark.parametrize("model_type", ["llama", "mistral", "mixtral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 8.0}, LLAMA3])
def test_both_routes_write_the_same_architecture_fields(
    tmp_path: Path, model_type: str, tied: bool, scaling: Mapping[str, object] | None
) -> None:
    """Rows 4 and 8: every field but those that say how weights are stored."""
    config = config_of(model_type, tie_word_embeddings=tied, rope_scaling=scaling, torch_dtype="float16")
    weights = {name: value.astype(np.float16) for name, value in random_weights(config).items()}
    if tied:
        weights.pop("lm_head.weight", None)
    directory = write_model(tmp_path / "m", config, weights)
    converted(directory, tmp_path / "plain", Precision.FP16)
    fp8_checkpoint(directory, tmp_path / "fp8")
    plain, fp8 = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("plain", "fp8"))
    assert fp8.pop("quantization")["quant_algo"] == "FP8"
    assert plain.pop("quantization")["quant_algo"] is None
    assert plain == fp8
    assert (fp8["rotary_scaling"] is None) == (scaling is None)
    heads = ["lm_head.weight" in file for file in (*ranks(tmp_path / "plain"), *ranks(tmp_path / "fp8"))]
    assert heads == [not tied] * 2


def test_activation_and_cache_scales_are_those_of_the_calibration(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    ranges = made_up_ranges(directory)
    notes = fp8_checkpoint(directory, tmp_path / "c", ranges)
    (tensors,) = ranks(tmp_path / "c")
    for module, (largest,) in ranges.inputs.items():
        if module != "lm_head":
            scale = tensors[f"{module}.activation_scaling_factor"]
            assert torch.equal(scale, torch.tensor([largest]) / 448)
    scales = [tensors[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"].item() for layer in range(3)]
    assert scales == [np.float32(value) / np.float32(448) for value in ranges.keys]
    assert any("median" in note for note in notes) and not any("warning" in note for note in notes)


def test_an_excluded_module_keeps_16_bits_and_the_head_may_be_quantised(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    fp8_checkpoint(directory, tmp_path / "c", wishes=Quantisation(exclude_modules=("*layers.1.*",)))
    (tensors,) = ranks(tmp_path / "c")
    types = {name: tensor.dtype for name, tensor in tensors.items() if tensor.ndim == 2}
    assert types["lm_head.weight"] is torch.float8_e4m3fn
    assert "lm_head.weights_scaling_factor" in tensors
    for name, kind in types.items():
        excluded = ".1." in name or "embedding" in name
        assert kind is (torch.float16 if excluded else torch.float8_e4m3fn), name


def test_sizes_before_and_after_are_told_by_module(tmp_path: Path) -> None:
    """Row 113: a module that stayed as it was would show."""
    notes = fp8_checkpoint(write_model(tmp_path / "m"), tmp_path / "c")
    (sizes,) = [note for note in notes if note.startswith("bytes of quantised modules")]
    assert "attention.dense 12288 -> 3072" in sizes and "lm_head" not in sizes


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.weight", "model.layers.2.mlp.up_proj.weight"])
def test_a_source_value_that_is_no_number_is_named(tmp_path: Path, name: str, bad: float) -> None:
    """Row 107: nothing that is NaN in FP8 is ever written."""
    weights = random_weights(config_of())
    weights[name][3, 5] = bad
    with pytest.raises(Failure, match=name.replace(".", r"\.")):
        fp8_checkpoint(write_model(tmp_path / "m", config_of(), weights), tmp_path / "c")
    assert not list((tmp_path / "c").glob("*.safetensors"))


def test_a_tensor_of_zeros_has_no_scale(tmp_path: Path) -> None:
    weights = random_weights(config_of())
    weights["model.layers.0.self_attn.o_proj.weight"][:] = 0
    with pytest.raises(Failure, match=r"layers\.0\.self_attn\.o_proj\.weight holds zeros only"):
        fp8_checkpoint(write_model(tmp_path / "m", config_of(), weights), tmp_path / "c")


def test_missing_cache_ranges_fail_unless_unit_scales_are_asked_for(tmp_path: Path) -> None:
    """Row 115."""
    directory = write_model(tmp_path / "m")
    ranges = without_keys(made_up_ranges(directory))
    with pytest.raises(Failure, match="keys and values of layer 0"):
        fp8_checkpoint(directory, tmp_path / "measured", ranges)
    notes = fp8_checkpoint(
        directory, tmp_path / "unit", ranges, wishes=WISHES.model_copy(update={"kv_scale": KvScale.UNIT})
    )
    assert any("because kv_scale is unit" in note for note in notes)
    (tensors,) = ranks(tmp_path / "unit")
    assert tensors[f"{LAYER}.attention.kv_cache_scaling_factor"].tolist() == [1.0]


def test_cache_scales_that_are_all_one_are_warned_about(tmp_path: Path) -> None:
    """Row 101."""
    directory = write_model(tmp_path / "m")
    ranges = replace(made_up_ranges(directory), keys=(3.0, 4.0, 5.0))
    notes = fp8_checkpoint(directory, tmp_path / "c", ranges)
    assert any(note.startswith("warning: every KV cache scale") and "keys up to 5" in note for note in notes)


def test_experts_have_scales_of_their_own(tmp_path: Path) -> None:
    config = config_of("mixtral")
    weights = random_weights(config)
    directory = write_model(tmp_path / "m", config, weights)
    fp8_checkpoint(directory, tmp_path / "c", cut=Cut(2, 1))
    for rank, tensors in enumerate(ranks(tmp_path / "c")):
        assert tensors[f"{LAYER}.mlp.router.weight"].dtype is torch.float32
        assert tensors[f"{LAYER}.mlp.fc.weights_scaling_factor"].shape == (3, 1)
        half = slice(24 * rank, 24 * (rank + 1))
        for expert in range(3):
            prefix = f"model.layers.0.block_sparse_moe.experts.{expert}"
            (up, gate), scale = by_torch(weights[f"{prefix}.w3.weight"], weights[f"{prefix}.w1.weight"])
            assert torch.equal(tensors[f"{LAYER}.mlp.fc.weights_scaling_factor"][expert], scale)
            assert torch.equal(codes(tensors[f"{LAYER}.mlp.fc.weight"])[expert], torch.cat((up[half], gate[half])))
            (down,), scale = by_torch(weights[f"{prefix}.w2.weight"])
            assert torch.equal(tensors[f"{LAYER}.mlp.proj.weights_scaling_factor"][expert], scale)
            assert torch.equal(codes(tensors[f"{LAYER}.mlp.proj.weight"])[expert], down[:, half])


def test_experts_without_tokens_fail_or_borrow(tmp_path: Path) -> None:
    """Row 106 from the calibration's file to the checkpoint."""
    directory = write_model(tmp_path / "m", config_of("mixtral"))
    ranges = made_up_ranges(directory)
    module = f"{LAYER}.mlp.fc"
    ranges = replace(ranges, inputs={**ranges.inputs, module: (2.0, None, 4.0)})
    with pytest.raises(Failure, match=r"experts 1 of transformer\.layers\.0\.mlp\.fc"):
        fp8_checkpoint(directory, tmp_path / "fails", ranges)
    wishes = WISHES.model_copy(update={"uncalibrated_experts": UncalibratedExperts.SIBLING_MAX})
    notes = fp8_checkpoint(directory, tmp_path / "borrows", ranges, wishes=wishes)
    assert any(note.startswith("warning: 1 ranges of experts") and module in note for note in notes)
    (tensors,) = ranks(tmp_path / "borrows")
    assert tensors[f"{module}.activation_scaling_factor"].tolist() == [np.float32(4) / np.float32(448)]
    broken = replace(ranges, inputs={**ranges.inputs, module: (2.0, float("nan"), 4.0)})
    with pytest.raises(Failure, match="experts 1"):
        fp8_checkpoint(directory, tmp_path / "nan", broken, wishes=wishes)


def test_a_plain_step_needs_no_calibration(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    assert len(step_for(directory, Precision.FP16).inputs) == 1
    assert len(fp8_step(directory).inputs) == 2
