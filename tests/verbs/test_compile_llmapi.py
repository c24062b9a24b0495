"""Engines of the llmapi lane: the models as they are, and settings that the PyTorch backend takes."""

from pathlib import Path

import pytest
import yaml
from tests.fakes.builder_host import host_environment, write_programs
from tests.fakes.tiny_recipe import TEXT, write_recipe
from tests.verbs.test_build import Recorder

from draftyard.nouns.errors import Failure
from draftyard.verbs.build import build, check
from draftyard.verbs.build_choices import ENGINES, BuildOptions
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.repositories import packaged


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = write_recipe(tmp_path)
    text = TEXT.replace("[reference]", "[llmapi]").replace("[cpu]", "[h100_sxm]").replace("[fp32]", "[fp16]")
    path.write_text(text)
    return path


def test_engines_hold_the_models_and_their_settings(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    drawing, _ = build(recipe, BuildOptions(out, ENGINES), Recorder())
    found = {}
    for variant in drawing.blueprint.variants:
        place = out / "engines" / "out" / "engine" / variant.step_keys[-1]
        found[variant.speculator.value] = (place, yaml.safe_load((place / "model.yaml").read_text()))
    assert set(found) == {"none", "ngram", "draft_target"}
    place, settings = found["draft_target"]
    assert (place / "target" / "model.safetensors").samefile(tmp_path / "target" / "model.safetensors")
    assert (place / "speculator" / "config.json").read_text() == (tmp_path / "draft" / "config.json").read_text()
    assert (place / "target" / "tokenizer.json").is_file()
    assert settings["speculative_config"] == {
        "decoding_type": "DraftTarget",
        "max_draft_len": 2,
        "speculative_model_dir": "speculator",
    }
    assert (settings["model"], settings["dtype"], settings["tensor_parallel_size"]) == ("target", "float16", 1)
    options = yaml.safe_load((place / "llm_api_options.yaml").read_text())
    assert options == {name: value for name, value in settings.items() if name not in ("model", "triton_config")}
    assert "speculative_config" not in found["none"][1]
    assert not (found["ngram"][0] / "speculator").exists()
    check(recipe, BuildOptions(out, ENGINES), Recorder())


def test_nothing_is_converted_for_it(recipe: Path) -> None:
    assert {step.kind.value for step in draw_recipe(recipe, None).blueprint.steps} == {"engine"}


def test_it_takes_fp8_from_fp8_models_alone(recipe: Path) -> None:
    text = recipe.read_text().replace("[fp16]", "[fp8]")
    recipe.write_text(text + "quantisation: {calibration: {prompts: texts.txt}}\n")
    (recipe.parent / "texts.txt").write_text("a text\n")
    with pytest.raises(Failure, match="takes FP8 only from a model that is stored so"):
        draw_recipe(recipe, None)


def test_it_has_no_repository_yet(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in host_environment(write_programs(tmp_path / "bin"), ()).items():
        monkeypatch.setenv(name, value)
    build(recipe, BuildOptions(tmp_path / "out"), Recorder())
    with pytest.raises(Failure, match="has no Triton repository"):
        packaged(recipe, tmp_path / "out")


def test_a_changed_model_is_refused(recipe: Path, tmp_path: Path) -> None:
    drawing = draw_recipe(recipe, None)
    settings = tmp_path / "target" / "generation_config.json"
    step = drawing.blueprint.steps[0]
    settings.write_text(settings.read_text().replace("[2, 3]", "[2]"))
    from draftyard.verbs.compile_llmapi import make_llmapi_engine
    from draftyard.verbs.making import Workplace

    staging = tmp_path / "staging"
    staging.mkdir()
    place = Workplace(staging, lambda key: tmp_path, (tmp_path / "target",), lambda share, words: None)
    with pytest.raises(Failure, match="changed since the plan was made"):
        make_llmapi_engine(step, place)
