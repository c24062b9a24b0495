"""The recipes for appliances: drawn from settings and headers alone, and built as a rehearsal with a stand-in."""

import subprocess
from pathlib import Path

import pytest
from tests.fakes.appliance import NAMES, lay_out
from tests.fakes.builder_host import host_environment, write_programs
from tests.verbs.test_build import Recorder

from draftyard.nouns.blueprint import StepKind
from draftyard.nouns.builder import Builder, Runtime
from draftyard.nouns.errors import Failure
from draftyard.verbs.build import build, check
from draftyard.verbs.build_choices import ENGINES, BuildOptions
from draftyard.verbs.drawing import draw_recipe

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
BUILDER = Builder(Runtime.HOST, "trtllm-build", "builder-python", "", timeout_s=120)
VARIANTS = {"llama-3.3-70b": 14, "llama-3.1-8b": 12, "qwen2.5-72b": 8, "mixtral-8x7b": 8}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("appliance"))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_drawn_from_headers_alone(recipes, tmp_path, name):
    blueprint = draw_recipe(recipes / f"{name}.yaml", tmp_path / "cache").blueprint
    assert len(blueprint.variants) == VARIANTS[name]
    assert {variant.gpu.value for variant in blueprint.variants} == {"h100_sxm", "h200_sxm"}
    engines = [step for step in blueprint.steps if step.kind is StepKind.ENGINE]
    # H100 and H200 engines are apart, and each draft is an engine of its own.
    assert len({step.key for step in engines}) == len(engines) > len(blueprint.variants) // 2


def rehearsal(out: Path) -> BuildOptions:
    return BuildOptions(out, ENGINES, workers=2, builder=BUILDER, rehearsal=True)


@pytest.mark.slow
def test_the_whole_matrix_of_a_70b_is_rehearsed(recipes, tmp_path, monkeypatch):
    for name, value in host_environment(write_programs(tmp_path / "bin"), (H100, H200)).items():
        monkeypatch.setenv(name, value)
    recipe, out = recipes / "llama-3.3-70b.yaml", tmp_path / "out"
    first, second = Recorder(), Recorder()
    build(recipe, rehearsal(out), first)
    build(recipe, rehearsal(out), second)
    assert (second.made, sorted(second.had)) == ([], sorted(first.made))
    assert sum(label.startswith("engine") for label in first.made) == 18
    check(recipe, rehearsal(out), Recorder())
    used = subprocess.run(["du", "-sm", str(out)], capture_output=True, text=True, check=True).stdout
    assert int(used.split()[0]) < 200  # terabytes of weights are holes
    text = recipe.read_text()
    recipe.write_text(text.replace("max_batch_size: 32", "max_batch_size: 16"))
    third = Recorder()
    build(recipe, rehearsal(out), third)
    recipe.write_text(text)
    assert {label.split()[0] for label in third.made} == {"engine"}
    assert {label.split()[0] for label in third.had} == {"calibration", "checkpoint"}


def test_engines_of_another_product_are_left_for_its_host(recipes, tmp_path, monkeypatch):
    for name, value in host_environment(write_programs(tmp_path / "bin"), (H200,)).items():
        monkeypatch.setenv(name, value)
    recorder = Recorder()
    with pytest.raises(Failure, match="left for machines with h100_sxm") as caught:
        build(recipes / "llama-3.1-8b.yaml", rehearsal(tmp_path / "out"), recorder)
    assert caught.value.code == 3
    engines = [label for label in recorder.made if label.startswith("engine")]
    assert engines and all("h200_sxm" in label for label in engines)


def test_a_rehearsal_is_never_taken_for_the_real_thing(recipes, tmp_path):
    recipe = recipes / "qwen2.5-72b.yaml"
    keys = [{step.key for step in draw_recipe(recipe, None, played).blueprint.steps} for played in (False, True)]
    assert not keys[0] & keys[1]


def test_one_failing_engine_does_not_stop_the_others(recipes, tmp_path, monkeypatch):
    programs = write_programs(tmp_path / "bin")
    for name, value in host_environment(programs, (H100, H200)).items():
        monkeypatch.setenv(name, value)
    builder = programs / "trtllm-build"
    lines = builder.read_text().splitlines()
    lines.insert(1, 'case "$*" in *medusa*) export FAKE_BUILD=cuda_oom;; esac')
    builder.write_text("\n".join(lines) + "\n")
    recorder = Recorder()
    with pytest.raises(Failure, match="the GPU's memory is too small") as caught:
        build(recipes / "llama-3.3-70b.yaml", rehearsal(tmp_path / "out"), recorder)
    assert (caught.value.code, caught.value.message.count("engine medusa")) == (1, 4)
    made = [label for label in recorder.made if label.startswith("engine")]
    assert len(made) == 14 and not any("medusa" in label for label in made)
