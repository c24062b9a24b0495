"""Every way to speculate on an FP8 target: heads stay in 16 bit, and greedy texts are those of plain FP8 decoding."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.fakes.tiny_recipe import write_recipe
from tests.fakes.tiny_speculators import write_heads_recipe
from tests.verbs.test_build_heads import WAYS, Silent, Works, generated, variants, write_everything

from draftyard.verbs.build import build
from draftyard.verbs.build_choices import BuildOptions


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Works:
    root = tmp_path_factory.mktemp("works")
    write_everything(root)
    (root / "texts").write_text("\n".join(f"a w{4 + index} w5 w{4 + index * 5 % 40} w9 w30" for index in range(20)))
    recipe = write_heads_recipe(root, *WAYS.values())
    quantisation = "quantisation: {kv_cache: fp8, calibration: {prompts: texts}}"
    text = recipe.read_text()
    assert "precisions: [fp32]" in text
    recipe.write_text(text.replace("precisions: [fp32]", f"precisions: [fp8]\n{quantisation}"))
    _, built = build(recipe, BuildOptions(root / "out"), Silent())
    return Works(recipe, root / "out", {f"{one.kind} {one.label.partition(' ')[2]}": one.path for one in built})


def test_every_way_gives_the_text_of_plain_fp8_decoding(works: Works) -> None:
    engines = variants(works)
    plain = generated(engines["none"])
    assert all(len(text) == 24 for text in plain.values())
    assert len(engines) == 1 + len(WAYS)
    for name, path in engines.items():
        assert generated(path) == plain, name


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_the_base_of_a_merged_checkpoint_is_the_plain_one_to_the_byte(works: Works, kind: str) -> None:
    engines = variants(works)
    plain, merged = (load_file(engines[name] / "rank0.safetensors") for name in ("none", kind))
    heads = {name for name in merged if name.startswith(("medusa_heads", "eagle_nets"))}
    assert heads and not any("scaling_factor" in name for name in heads)
    assert {merged[name].dtype for name in heads} == {torch.float16}
    assert bits({name: tensor for name, tensor in merged.items() if name not in heads}) == bits(plain)


def test_medusa_heads_are_left_out_by_name(works: Works) -> None:
    def block(path: Path) -> dict[str, object]:
        return json.loads((path / "config.json").read_text())["pretrained_config"]["quantization"]

    engines = variants(works)
    excluded = block(engines["none"])["exclude_modules"]
    assert block(engines["medusa"])["exclude_modules"] == [*excluded, "*medusa_heads*"]
    assert block(engines["medusa"])["kv_cache_quant_algo"] == "FP8"


def test_an_external_draft_is_calibrated_and_quantised_as_well(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\n".join(f"a w{4 + index} w5 w{4 + index * 5 % 40} w9" for index in range(20)))
    quantisation = "quantisation: {kv_cache: fp8, calibration: {prompts: texts}}"
    recipe = write_recipe(tmp_path, (("precisions: [fp32]", f"precisions: [fp8]\n{quantisation}"),))
    _, built = build(recipe, BuildOptions(tmp_path / "out"), Silent())
    engines = {one.label.split()[1].split("-")[0]: one.path for one in built if one.kind == "engine"}
    plain = generated(engines["none"])
    assert set(engines) == {"none", "ngram", "draft_target"}
    for name in ("ngram", "draft_target"):
        assert generated(engines[name]) == plain, name
    draft = load_file(engines["draft_target"] / "draft" / "rank0.safetensors")
    assert draft["transformer.layers.0.mlp.proj.weight"].dtype is torch.float8_e4m3fn
