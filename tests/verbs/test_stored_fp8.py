"""Models that are FP8 already: what is taken over byte for byte, and what is refused with its reason."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.fakes.fp8_checkpoints import WISHES, Cut, fp8_checkpoint
from tests.fakes.fp8_models import COMPRESSED, STATIC, TENSOR, UNIFIED, fp8_tensors, write_fp8_model
from tests.fakes.tiny_recipe import write_recipe

from draftyard.nouns.blueprint import StepKind
from draftyard.nouns.errors import Failure
from draftyard.nouns.recipe import KvScale, Quantisation
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.inspect import inspect

PLAIN_CACHE = Quantisation()
LAYER = "transformer.layers.1"
THERE = "model.layers.1"


def converted_model(directory: Path, staging: Path, wishes: Quantisation = PLAIN_CACHE) -> dict[str, torch.Tensor]:
    unused = staging.with_name("unused")
    fp8_checkpoint(directory, staging, unused, wishes=wishes)
    return load_file(staging / "rank0.safetensors")


def codes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


@pytest.mark.parametrize(
    ("block", "unified"),
    [
        (COMPRESSED, None),
        (STATIC, None),
        (None, UNIFIED),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, None),
        ({"quant_method": "modelopt"}, UNIFIED),
    ],
    ids=["compressed-tensors", "static", "unified", "unified in config", "unified in both"],
)
def test_weights_and_scales_are_taken_over(
    tmp_path: Path, block: Mapping[str, object] | None, unified: Mapping[str, object] | None
) -> None:
    source = fp8_tensors()
    directory = write_fp8_model(tmp_path / "m", source, block, unified)
    found = converted_model(directory, tmp_path / "c")
    for module, place in (("attention.dense", "self_attn.o_proj"), ("mlp.proj", "mlp.down_proj")):
        assert torch.equal(codes(found[f"{LAYER}.{module}.weight"]), codes(source[f"{THERE}.{place}.weight"]))
        assert torch.equal(found[f"{LAYER}.{module}.weights_scaling_factor"], source[f"{THERE}.{place}.weight_scale"])
        active = found[f"{LAYER}.{module}.activation_scaling_factor"]
        assert torch.equal(active, source[f"{THERE}.{place}.input_scale"].reshape(1))
    assert found["lm_head.weight"].dtype is torch.float16
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    assert config["quantization"]["quant_algo"] == "FP8" and config["dtype"] == "float16"


@pytest.mark.parametrize(
    ("modules", "places"),
    [
        (("attention.qkv",), ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        (("mlp.fc", "mlp.gate"), ("mlp.gate_proj", "mlp.up_proj")),
    ],
)
def test_what_is_multiplied_together_gets_the_largest_scale(
    tmp_path: Path, modules: tuple[str, ...], places: tuple[str, ...]
) -> None:
    source = fp8_tensors()
    found = converted_model(write_fp8_model(tmp_path / "m", source), tmp_path / "c")
    scales = [source[f"{THERE}.{place}.weight_scale"] for place in places]
    largest = max(scales, key=lambda scale: scale.item())
    expected = [
        (source[f"{THERE}.{place}.weight"].float() * scale / largest).to(torch.float8_e4m3fn)
        for place, scale in zip(places, scales, strict=True)
    ]
    held = torch.cat([codes(found[f"{LAYER}.{module}.weight"]) for module in modules])
    assert torch.equal(held, torch.cat([codes(part) for part in expected]))
    active = max(source[f"{THERE}.{place}.input_scale"].item() for place in places)
    for module in modules:
        assert torch.equal(found[f"{LAYER}.{module}.weights_scaling_factor"], largest)
        assert found[f"{LAYER}.{module}.activation_scaling_factor"].tolist() == [active]


def test_ranks_share_the_same_scales(tmp_path: Path) -> None:
    directory = write_fp8_model(tmp_path / "m")
    fp8_checkpoint(directory, tmp_path / "c", tmp_path / "unused", Cut(2, 1), PLAIN_CACHE)
    first, second = (load_file(tmp_path / "c" / f"rank{rank}.safetensors") for rank in range(2))
    for name in (name for name in first if name.endswith("scaling_factor")):
        assert torch.equal(first[name], second[name])


def group(**changes: object) -> Mapping[str, object]:
    weights, active = {**TENSOR}, {**TENSOR}
    for key, value in changes.items():
        side, _, field = key.partition("_")
        (weights if side == "weights" else active)[field] = value
    return {**COMPRESSED, "config_groups": {"g": {"weights": weights, "input_activations": active}}}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (
            {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
            "fbgemm_fp8: weights have a scale for each row",
        ),
        (group(weights_strategy="channel"), "weights have a scale for each channel"),
        (group(weights_num_bits=4, weights_type="int"), "weights are 4-bit int"),
        (group(active_dynamic=True), "activations are scaled dynamically"),
        ({**COMPRESSED, "config_groups": {"g": {"weights": TENSOR}}}, "activations are not quantised"),
        ({**COMPRESSED, "config_groups": {}}, "no config_groups"),
        ({**STATIC, "activation_scheme": "dynamic"}, "fp8: activations are scaled dynamically"),
        ({**STATIC, "weight_block_size": [128, 128]}, "weights have a scale for each block"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt: quant_algo is NVFP4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "the KV cache is NVFP4"),
    ],
)
def test_other_formats_are_refused_by_name(tmp_path: Path, block: Mapping[str, object], words: str) -> None:
    with pytest.raises(Failure, match=words):
        inspect(write_fp8_model(tmp_path / "m", block=block))


def test_what_the_files_lack_or_have_too_much_of_is_named(tmp_path: Path) -> None:
    o_proj = "model.layers.1.self_attn.o_proj"
    whole = fp8_tensors()
    faults = {
        "without their scales: model.layers.1.self_attn.o_proj.input_scale": {f"{o_proj}.input_scale": None},
        "no single number: model.layers.1.self_attn.o_proj.weight_scale": {f"{o_proj}.weight_scale": torch.ones(32)},
        "in some layers or parts only: attention.dense": {f"{o_proj}.weight": torch.ones(32, 32).half()},
        "checkpoints have none: model.embed_tokens.weight": {
            "model.embed_tokens.weight": torch.ones(50, 32).to(torch.float8_e4m3fn),
            "model.embed_tokens.weight_scale": torch.ones(1),
            "model.embed_tokens.input_scale": torch.ones(1),
        },
    }
    for place, (words, changes) in enumerate(faults.items()):
        tensors = {name: value for name, value in {**whole, **changes}.items() if value is not None}
        with pytest.raises(Failure, match=words.replace(".", r"\.")):
            inspect(write_fp8_model(tmp_path / str(place), tensors))
    halves = {name: value.half() for name, value in whole.items() if "scale" not in name}
    with pytest.raises(Failure, match="says FP8, but no weight is"):
        inspect(write_fp8_model(tmp_path / "halves", halves))


def test_fp8_without_a_method_is_no_plain_weight(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no plain weight"):
        inspect(write_fp8_model(tmp_path / "m", block=None))


def test_a_byte_that_is_no_number_is_named(tmp_path: Path) -> None:
    """Row 107: in a source."""
    tensors = fp8_tensors()
    name = "model.layers.2.self_attn.o_proj.weight"
    spoiled = tensors[name].view(torch.uint8).clone()
    spoiled[3, 5], spoiled[4, 4] = 0x7F, 0xFF
    tensors[name] = spoiled.view(torch.float8_e4m3fn)
    with pytest.raises(Failure, match=r"layers\.2\.self_attn\.o_proj\.weight: 2 values"):
        converted_model(write_fp8_model(tmp_path / "m", tensors), tmp_path / "c")


@pytest.mark.parametrize("scale", [0.0, float("nan"), -1.0])
def test_an_impossible_scale_is_named(tmp_path: Path, scale: float) -> None:
    tensors = {**fp8_tensors(), "model.layers.0.mlp.up_proj.input_scale": torch.tensor(scale)}
    with pytest.raises(Failure, match=r"layers\.0\.mlp\.up_proj\.input_scale is"):
        converted_model(write_fp8_model(tmp_path / "m", tensors), tmp_path / "c")


def test_a_kind_that_is_16_bit_everywhere_is_left_out(tmp_path: Path) -> None:
    tensors = fp8_tensors()
    for layer in range(3):
        stem = f"model.layers.{layer}.self_attn.o_proj"
        tensors[f"{stem}.weight"] = tensors[f"{stem}.weight"].half()
        del tensors[f"{stem}.weight_scale"], tensors[f"{stem}.input_scale"]
    found = converted_model(write_fp8_model(tmp_path / "m", tensors), tmp_path / "c")
    assert found[f"{LAYER}.attention.dense.weight"].dtype is torch.float16
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    assert "*attention.dense" in config["quantization"]["exclude_modules"]


def test_cache_scales_are_taken_over_or_asked_for(tmp_path: Path) -> None:
    """Row 115."""
    with_scales = write_fp8_model(tmp_path / "with", fp8_tensors(cached=True))
    assert inspect(with_scales).fp8 is not None and inspect(with_scales).fp8.cache_scales
    found = converted_model(with_scales, tmp_path / "c", WISHES)
    scales = [found[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"].item() for layer in range(3)]
    assert scales == [2.0, 3.0, 4.0]
    without = write_fp8_model(tmp_path / "without")
    with pytest.raises(Failure, match="no scales of keys and values for layer 0"):
        converted_model(without, tmp_path / "fails", WISHES)
    unit = converted_model(without, tmp_path / "unit", WISHES.model_copy(update={"kv_scale": KvScale.UNIT}))
    assert unit[f"{LAYER}.attention.kv_cache_scaling_factor"].tolist() == [1.0]


def recipe(root: Path, precisions: str, quantisation: str = "{}") -> Path:
    write_fp8_model(root / "target")
    (root / "draft").mkdir(exist_ok=True)
    changes = (
        ("precisions: [fp32]", f"precisions: {precisions}\nquantisation: {quantisation}"),
        ("  - {kind: draft_target, path: draft, max_draft_len: 2}\n", ""),
    )
    return write_recipe(root, changes)


def test_no_calibration_is_drawn_for_it(tmp_path: Path) -> None:
    steps = draw_recipe(recipe(tmp_path, "[fp8]"), None).blueprint.steps
    assert StepKind.CALIBRATION not in [step.kind for step in steps]
    (checkpoint,) = [step for step in steps if step.kind is StepKind.CHECKPOINT]
    assert checkpoint.parameters["quantisation"]["scales"] == "stored"


@pytest.mark.parametrize(
    ("precisions", "quantisation", "words"),
    [
        ("[fp16, fp8]", "{}", "FP8 already, fp16 would not restore it"),
        ("[fp8]", "{kv_cache: fp8}", "no scales for an FP8 KV cache"),
        ("[fp8]", "{exclude_modules: ['*mlp*']}", "other modules left out"),
    ],
)
def test_wishes_that_do_not_go_with_it_are_refused(
    tmp_path: Path, precisions: str, quantisation: str, words: str
) -> None:
    with pytest.raises(Failure, match=words):
        draw_recipe(recipe(tmp_path, precisions, quantisation), None)


def test_dequantised_weights_stay_near_the_original(tmp_path: Path) -> None:
    """Quantising q, k and v anew under one scale costs little: no value moves by more than an eighth of itself."""
    source = fp8_tensors()
    found = converted_model(write_fp8_model(tmp_path / "m", source), tmp_path / "c")
    scale = found[f"{LAYER}.attention.qkv.weights_scaling_factor"]
    queries = found[f"{LAYER}.attention.qkv.weight"].float()[:32] * scale
    original = source[f"{THERE}.self_attn.q_proj.weight"].float() * source[f"{THERE}.self_attn.q_proj.weight_scale"]
    np.testing.assert_allclose(queries, original, rtol=0.125, atol=float(scale) / 256)
