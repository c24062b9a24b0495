"""What is not built is refused by name, with the nearest combination that is."""

import pytest
import yaml
from tests.fakes.tiny_recipe import TEXT

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane
from draftyard.nouns.recipe import Recipe
from draftyard.rules.capability import CAPABILITIES, capability_problems, gpus_of


def recipe_of(old: str = "tiny", new: str = "tiny") -> Recipe:
    return Recipe.model_validate(yaml.safe_load(TEXT.replace(old, new)))


@pytest.mark.parametrize("family", [None, "llama", "mistral", "qwen2", "qwen3", "mixtral"])
def test_the_reference_lane_is_built(family: str | None) -> None:
    assert capability_problems(recipe_of(), family, (family,) if family else ()) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[cpu]", "[h200_sxm]", "does not execute gpu h200_sxm"),
        ("[cpu]", "[cpu, h100_sxm]", "no lane of the recipe runs on h100_sxm (lanes: reference)"),
        ("[reference]", "[llmapi]", "the llmapi lane with speculator none does not execute precision fp32, gpu cpu"),
        ("{path: target}", "{path: target, tp_size: 128}", "does not execute 128 ranks"),
    ],
)
def test_refusals(old: str, new: str, message: str) -> None:
    problems = capability_problems(recipe_of(old, new))
    assert any(message in problem.message for problem in problems)
    assert all("lane reference" in problem.hint or "remove" in problem.hint for problem in problems)


def test_an_ngram_on_the_engine_flow_is_never_executed() -> None:
    text = TEXT.replace("[reference]", "[tensorrt]").replace("[cpu]", "[h100_sxm]").replace("[fp32]", "[fp16]")
    messages = [problem.message for problem in capability_problems(Recipe.model_validate(yaml.safe_load(text)))]
    assert "the tensorrt lane does not execute ngram" in messages


def test_families_of_target_and_draft() -> None:
    assert "family mamba" in capability_problems(recipe_of(), "mamba")[0].message
    (problem,) = capability_problems(recipe_of(), "llama", ("mamba",))
    assert "draft_target does not execute family mamba" in problem.message


def test_devices_of_lanes() -> None:
    assert gpus_of(Lane.REFERENCE, tuple(Gpu)) == (Gpu.CPU,)
    assert Gpu.CPU not in gpus_of(Lane.TENSORRT, tuple(Gpu))


def test_each_pair_has_one_row() -> None:
    pairs = [(row.lane, row.speculator) for row in CAPABILITIES]
    assert len(set(pairs)) == len(pairs)


def asked(speculator: str, lane: str, precision: str) -> Recipe:
    text = TEXT.replace("{kind: ngram, max_draft_len: 3}", speculator)
    text = text.replace("  - {kind: draft_target, path: draft, max_draft_len: 2}\n", "")
    device = "cpu" if lane == "reference" else "h100_sxm"
    text = text.replace("[reference]", f"[{lane}]").replace("[cpu]", f"[{device}]").replace("[fp32]", f"[{precision}]")
    return Recipe.model_validate(yaml.safe_load(text))


HEADS = {
    "medusa": "{kind: medusa, path: heads, choices: [[0]]}",
    "eagle": "{kind: eagle, path: heads, num_eagle_layers: 2, max_draft_len: 4}",
    "eagle3": "{kind: eagle3, path: heads}",
    "mtp": "{kind: mtp, path: heads}",
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_reference_lane_executes_heads_of_dense_families(kind: str, family: str, precision: str) -> None:
    assert capability_problems(asked(HEADS[kind], "reference", precision), family) == []


@pytest.mark.parametrize(
    ("kind", "lane", "precision", "family", "refused", "nearest"),
    [
        ("eagle", "tensorrt", "fp16", "qwen2", "with speculator eagle does not execute family qwen2", "none"),
        ("eagle", "tensorrt", "fp8", "llama", "with speculator eagle does not execute precision fp8", "eagle"),
        ("eagle", "tensorrt", "fp8", "mixtral", "does not execute precision fp8, family mixtral", "none"),
        ("eagle3", "tensorrt", "fp16", "llama", "the tensorrt lane does not execute eagle3", "eagle3"),
        ("mtp", "tensorrt", "fp16", "llama", "the tensorrt lane does not execute mtp", "mtp"),
        ("medusa", "llmapi", "fp16", "llama", "the llmapi lane does not execute medusa", "medusa"),
        ("eagle", "llmapi", "fp16", "llama", "the llmapi lane does not execute eagle", "eagle"),
        ("medusa", "reference", "fp32", "mixtral", "with speculator medusa does not execute family mixtral", "none"),
    ],
)
def test_heads_outside_the_matrix_are_refused_with_the_nearest(
    kind: str, lane: str, precision: str, family: str, refused: str, nearest: str
) -> None:
    """Missing rows of a table in the notes became crashes (NVIDIA/TensorRT-LLM#10396, #1798, #1845)."""
    problems = capability_problems(asked(HEADS[kind], lane, precision), family)
    (found,) = [problem for problem in problems if refused in problem.message]
    assert found.hint.startswith("use the nearest that is built: lane ")
    # Two things wrong at once are farther away than plain decoding on the same GPU.
    assert f"speculator {nearest}, " in found.hint


def test_lookahead_is_no_matter_of_the_reference_lane() -> None:
    (problem,) = capability_problems(asked("{kind: lookahead, ngram_size: 2}", "reference", "fp32"))
    assert problem.message == "the reference lane does not execute lookahead"
