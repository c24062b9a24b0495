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


def test_what_a_lane_executes_but_this_version_does_not_build() -> None:
    text = TEXT.replace("[reference]", "[tensorrt]").replace("[cpu]", "[h100_sxm]").replace("[fp32]", "[fp16]")
    text = text.replace("  - {kind: ngram, max_draft_len: 3}\n", "")
    problems = capability_problems(Recipe.model_validate(yaml.safe_load(text)))
    assert [problem.message.split(" lane")[0] for problem in problems] == ["this version does not build"] * 2
    assert "lane reference, speculator draft_target, precision fp16, gpu cpu" in problems[1].hint


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
