"""Calibration as a step: the same largest activations as one pass in transformers, whatever the texts' names."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.test_calibrator import PLACES, whole_model
from tests.fakes.fp8_checkpoints import calibrated
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.fakes.tiny_recipe import write_recipe
from tests.verbs.test_transformers_models import SIZES, saved
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draftyard.doors.calibration_texts import find_calibration_files
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import Failure
from draftyard.rules.explain import explain
from draftyard.verbs.calibrate_scales import make_calibration
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.fp8_conversion import read_ranges
from draftyard.verbs.making import Workplace

TEXTS = "\n".join(f"a w{4 + index * 7 % 40} w5 w{4 + index * 3 % 40} w9 w{4 + index}" for index in range(12)) + "\n"


def samples_of(texts: str) -> list[tuple[int, ...]]:
    """Token ids: the word w7 is token 7."""
    return [tuple(3 if word == "a" else int(word[1:]) for word in line.split()) for line in texts.splitlines()]


def random_model(kind: type[PreTrainedModel], config: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model = kind(config)
    for value in model.parameters():
        value.data.normal_(0, 0.3)
    return model.eval()


DENSE = [
    (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True)),
    (MistralForCausalLM, MistralConfig(**SIZES, head_dim=16)),
    (Qwen2ForCausalLM, Qwen2Config(**SIZES)),
    (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16)),
]


@pytest.mark.parametrize(("kind", "config"), DENSE, ids=lambda value: getattr(value, "__name__", ""))
def test_every_family_measures_what_transformers_sees(
    tmp_path: Path, kind: type[PreTrainedModel], config: object
) -> None:
    model = random_model(kind, config)
    (tmp_path / "texts").write_text(TEXTS)
    ranges = read_ranges(calibrated(saved(tmp_path / "m", model), tmp_path / "c", tmp_path / "texts"))
    expected = whole_model(model, samples_of(TEXTS))
    assert (ranges.samples, ranges.tokens) == (12, 72)
    for layer in range(2):
        for module, place in PLACES.items():
            found = ranges.inputs[f"transformer.layers.{layer}.{module}"]
            assert found == pytest.approx((expected[f"model.layers.{layer}.{place}"],), rel=1e-4)
        assert ranges.keys[layer] == pytest.approx(expected[f"keys {layer}"], rel=1e-4)
        assert ranges.values[layer] == pytest.approx(expected[f"values {layer}"], rel=1e-4)


def test_each_expert_is_measured_by_itself(tmp_path: Path) -> None:
    """transformers' router tells which tokens go where; the input of an expert's first product is the normed stream."""
    model = random_model(MixtralForCausalLM, MixtralConfig(**SIZES, num_local_experts=4))
    (tmp_path / "texts").write_text(TEXTS)
    ranges = read_ranges(calibrated(saved(tmp_path / "m", model), tmp_path / "c", tmp_path / "texts"))
    for layer in range(2):
        largest = [0.0] * 4

        def note(module: object, given: tuple[torch.Tensor, ...], layer: int = layer, into: list = largest) -> None:
            stream = given[0].reshape(-1, 32)
            gate = model.model.layers[layer].mlp.gate.weight
            for row, experts in zip(stream, (stream @ gate.T).topk(2).indices, strict=True):
                for expert in experts.tolist():
                    into[expert] = max(into[expert], row.abs().max().item())

        hook = model.model.layers[layer].mlp.register_forward_pre_hook(note)
        for sample in samples_of(TEXTS):
            with torch.no_grad():
                model(torch.tensor([sample]))
        hook.remove()
        found = ranges.inputs[f"transformer.layers.{layer}.mlp.fc"]
        assert [value or 0.0 for value in found] == pytest.approx(largest, rel=1e-4)
        assert len(ranges.inputs[f"transformer.layers.{layer}.mlp.proj"]) == 4
        assert f"transformer.layers.{layer}.mlp.router" not in ranges.inputs


def test_an_expert_that_no_token_reaches_has_no_range(tmp_path: Path) -> None:
    """Row 106: a router that never chooses expert 2."""
    config = config_of("mixtral")
    weights = random_weights(config)
    for layer in range(3):
        weights[f"model.layers.{layer}.input_layernorm.weight"][:] = 1
        weights[f"model.layers.{layer}.post_attention_layernorm.weight"][:] = 0
        weights[f"model.layers.{layer}.post_attention_layernorm.weight"][0] = 1
        gate = np.zeros((3, 32), dtype=np.float32)
        weights[f"model.layers.{layer}.block_sparse_moe.gate.weight"] = gate
    directory = write_model(tmp_path / "m", config, weights)
    (tmp_path / "texts").write_text(TEXTS)
    ranges = read_ranges(calibrated(directory, tmp_path / "c", tmp_path / "texts"))
    seen = ranges.inputs["transformer.layers.0.mlp.fc"]
    assert sum(value is None for value in seen) == 1


def test_samples_and_tokens_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text(TEXTS)
    directory = write_model(tmp_path / "m")
    ranges = read_ranges(calibrated(directory, tmp_path / "c", tmp_path / "texts", samples=5, max_tokens=4))
    assert (ranges.samples, ranges.tokens) == (5, 20)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["amax.json"]


def fp8_recipe(root: Path, texts: str) -> Path:
    change = f"precisions: [fp8]\nquantisation: {{calibration: {{prompts: {texts}}}}}"
    return write_recipe(root, (("precisions: [fp32]", change),))


def keys(root: Path, texts: str) -> dict[str, str]:
    steps = draw_recipe(fp8_recipe(root, texts), None).blueprint.steps
    return {step.label: step.key for step in steps}


def test_the_key_follows_the_texts_and_not_their_name(tmp_path: Path) -> None:
    """Row 109."""
    for name in ("calib_a", "my_cnn_dailymail_copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(TEXTS)
    first, second = (keys(tmp_path, name) for name in ("calib_a", "my_cnn_dailymail_copy"))
    assert first == second
    (tmp_path / "calib_a" / "calib_a.txt").write_text(TEXTS + "w9\n")
    changed = keys(tmp_path, "calib_a")
    assert {label for label in first if first[label] != changed[label]} == set(first)


def test_what_is_left_out_of_fp8_does_not_calibrate_anew(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text(TEXTS)
    before = keys(tmp_path, "texts")
    path = fp8_recipe(tmp_path, "texts")
    path.write_text(
        path.read_text().replace("{calibration", "{kv_cache: fp8, exclude_modules: ['*lm_head'], calibration")
    )
    after = {step.label: step.key for step in draw_recipe(path, None).blueprint.steps}
    same = {label for label in before if before[label] == after[label]}
    assert same == {"calibration target", "calibration draft draft_target"}


def test_a_variant_is_made_of_its_calibration_too(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text(TEXTS)
    blueprint = draw_recipe(fp8_recipe(tmp_path, "texts"), None).blueprint
    kinds = [[blueprint.step(key).kind for key in variant.step_keys] for variant in blueprint.variants]
    plain = [StepKind.CALIBRATION, StepKind.CHECKPOINT, StepKind.ENGINE, StepKind.REPOSITORY]
    assert kinds == [plain, plain, [*plain[:2], *plain]]


@pytest.mark.parametrize("name", ["cnn_dailymail", "abisee/cnn_dailymail"])
def test_a_data_set_by_name_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    """Row 110."""
    with pytest.raises(Failure, match="never looked up by name"):
        draw_recipe(fp8_recipe(tmp_path, name), None)


@pytest.mark.parametrize("what", ["texts", "model"])
def test_what_changed_since_the_plan_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "texts").write_text(TEXTS)
    blueprint = draw_recipe(fp8_recipe(tmp_path, "texts"), None).blueprint
    step = next(step for step in blueprint.steps if step.kind is StepKind.CALIBRATION)
    if what == "texts":
        (tmp_path / "texts").write_text(TEXTS + "w9\n")
    else:
        document = json.loads((tmp_path / "target" / "generation_config.json").read_text())
        (tmp_path / "target" / "generation_config.json").write_text(json.dumps({**document, "top_k": 5}))
    (tmp_path / "staging").mkdir()
    with pytest.raises(Failure, match="changed since the plan was made"):
        run_step(step, tmp_path / "staging")


def test_texts_without_a_token_are_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("{{}}\n")
    blueprint = draw_recipe(fp8_recipe(tmp_path, "texts"), None).blueprint
    step = next(step for step in blueprint.steps if step.kind is StepKind.CALIBRATION)
    empty = tmp_path / "empty"
    empty.write_text('{"text": ""}\n')
    parameters = {**step.parameters, "prompts": find_calibration_files(empty).digest}
    step = replace(step, parameters=parameters, sources=(step.sources[0], str(empty)))
    (tmp_path / "staging").mkdir()
    with pytest.raises(Failure, match=r"no text of .* has a token"):
        run_step(step, tmp_path / "staging")


def run_step(step: Step, staging: Path) -> None:
    def no_input(key: str) -> Path:
        raise KeyError(key)

    paths = tuple(Path(source) for source in step.sources)
    make_calibration(step, Workplace(staging, no_input, paths, lambda share, words: None))


def test_a_full_disk_is_told_before_it_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts").write_text(TEXTS)
    directory = write_model(tmp_path / "m")
    monkeypatch.setattr("draftyard.verbs.calibrate_scales.free_bytes", lambda place: 72 * 32 * 4 - 1)
    with pytest.raises(Failure, match="9216 bytes of disk, 9215 are free"):
        calibrated(directory, tmp_path / "c", tmp_path / "texts")


def test_plan_tells_what_changed_in_the_recipes_words(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text(TEXTS)
    before = draw_recipe(fp8_recipe(tmp_path, "texts"), None).blueprint
    path = fp8_recipe(tmp_path, "texts")
    changed = "{kv_cache: fp8, exclude_modules: [], calibration: {prompts: texts, samples: 8}"
    path.write_text(path.read_text().replace("{calibration: {prompts: texts}", changed))
    after = draw_recipe(path, None).blueprint
    told = {step.label: step.reason for step in explain(after, frozenset(), before.steps)}
    assert told["calibration target"] == "changed: quantisation.calibration.samples 512 -> 8"
    assert "quantisation.kv_cache None -> FP8" in told["checkpoint target fp8 tp1 pp1"]
    assert "quantisation.exclude_modules" in told["checkpoint target fp8 tp1 pp1"]
