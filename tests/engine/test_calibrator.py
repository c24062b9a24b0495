"""Ranges measured layer by layer are those of one pass through the whole model in transformers."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_engines import random_llama, random_prompts, write_engine
from transformers import LlamaForCausalLM, PreTrainedModel

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.calibrator import Meter, _passes, measure_ranges
from draftyard.nouns.activation_ranges import ActivationRanges
from draftyard.nouns.errors import Failure

PLACES = {
    "attention.qkv": "self_attn.q_proj",
    "attention.dense": "self_attn.o_proj",
    "mlp.fc": "mlp.gate_proj",
    "mlp.gate": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}


def measured(directory: Path, samples: list[tuple[int, ...]]) -> ActivationRanges:
    config = json.loads((directory / "config.json").read_text())["pretrained_config"]
    shares: list[float] = []
    ranges = measure_ranges(
        open_tensor_file(directory / "rank0.safetensors"),
        config,
        samples,
        directory / "scratch",
        lambda share, words: shares.append(share),
    )
    assert shares[-1] == 1 and not (directory / "scratch").exists()
    return ranges


def whole_model(model: PreTrainedModel, samples: list[tuple[int, ...]]) -> Mapping[str, float]:
    """max |input| of every linear module by its name in transformers, and of cached keys and values."""
    largest: dict[str, float] = {}

    def note(name: str, x: torch.Tensor) -> None:
        largest[name] = max(largest.get(name, 0.0), x.abs().max().item())

    hooks = [
        module.register_forward_pre_hook(lambda _, given, name=name: note(name, given[0]))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    for sample in samples:
        with torch.no_grad():
            cache = model(torch.tensor([sample]), use_cache=True).past_key_values
        for layer, entry in enumerate(cache.layers):
            note(f"keys {layer}", entry.keys)
            note(f"values {layer}", entry.values)
    for hook in hooks:
        hook.remove()
    return largest


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 3}])
def test_ranges_are_those_of_the_whole_model(tmp_path: Path, changes: Mapping[str, object]) -> None:
    model = random_llama(**changes)
    samples = [tuple(prompt) for prompt in random_prompts(20)]
    ranges = measured(write_engine(tmp_path / "engine", model), samples)
    expected = whole_model(model, samples)
    assert (ranges.samples, ranges.tokens) == (20, sum(len(sample) for sample in samples))
    layers = model.config.num_hidden_layers
    assert set(ranges.inputs) == {
        *(f"transformer.layers.{layer}.{name}" for layer in range(layers) for name in PLACES),
        "lm_head",
    }
    for layer in range(layers):
        for name, place in PLACES.items():
            assert ranges.inputs[f"transformer.layers.{layer}.{name}"] == pytest.approx(
                (expected[f"model.layers.{layer}.{place}"],), rel=1e-4
            )
        assert ranges.keys[layer] == pytest.approx(expected[f"keys {layer}"], rel=1e-4)
        assert ranges.values[layer] == pytest.approx(expected[f"values {layer}"], rel=1e-4)
    assert ranges.inputs["lm_head"] == pytest.approx((expected["lm_head"],), rel=1e-4)


def test_how_samples_go_through_together_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_engine(tmp_path / "engine", random_llama())
    samples = [tuple(prompt) for prompt in random_prompts(9)]
    together = measured(directory, samples)
    monkeypatch.setattr("draftyard.engine.calibrator._PASS_SAMPLES", 1)
    alone = measured(directory, samples)
    for module, found in together.inputs.items():
        assert alone.inputs[module] == pytest.approx(found, rel=1e-5)
    assert alone.keys == pytest.approx(together.keys, rel=1e-5)


def test_passes_are_bounded_by_tokens_and_samples() -> None:
    samples = [(0,) * length for length in (5000, 3, 2000, 100, *[1] * 40)]
    passes = _passes(samples)
    assert [run.token_ids for runs in passes for run in runs] == samples
    assert [sum(run.end for run in runs) for runs in passes[:3]] == [5000, 2003, 115]
    assert all(run.slot == slot for runs in passes for slot, run in enumerate(runs))
    assert max(len(runs) for runs in passes) == 16


def test_layers_are_read_one_after_another_and_once(tmp_path: Path) -> None:
    """So that no more than one is in memory: nothing of a layer is read before the last sample left the one before."""
    directory = write_engine(tmp_path / "engine", random_llama(num_hidden_layers=3))
    config = json.loads((directory / "config.json").read_text())["pretrained_config"]
    inner, told = open_tensor_file(directory / "rank0.safetensors"), []

    class Spy:
        headers = inner.headers

        def read(self, name: str) -> memoryview:
            told.append(name)
            return inner.read(name)

    samples = [tuple(prompt) for prompt in random_prompts(40)]
    measure_ranges(Spy(), config, samples, tmp_path / "scratch", lambda share, words: told.append(words))
    assert len(passes := _passes(samples)) == 3
    names = [name for name in told if "." in name]
    assert len(set(names)) == len(names) == len([name for name in inner.headers if name != "lm_head.weight"])
    layers = [int(name.split(".")[2]) if "layers" in name else int(name[6:]) for name in told if "layer" in name]
    assert layers == sorted(layers)
    for layer in range(3):
        last_read = max(place for place, name in enumerate(told) if f"layers.{layer}." in name)
        done = [place for place, name in enumerate(told) if name == f"layer {layer}"]
        assert len(done) == len(passes) and min(done) > last_read


@pytest.mark.parametrize(("sample", "words"), [((), "no tokens"), ((95, 96), "token 96 has no row")])
def test_impossible_samples_are_refused(tmp_path: Path, sample: tuple[int, ...], words: str) -> None:
    with pytest.raises(Failure, match=words):
        measured(write_engine(tmp_path / "engine", random_llama()), [sample])


def test_an_activation_that_is_no_number_is_named(tmp_path: Path) -> None:
    model: LlamaForCausalLM = random_llama()
    model.model.layers[1].self_attn.v_proj.weight.data[3, 5] = float("nan")
    with pytest.raises(Failure, match=r"transformer\.layers\.1\.attention\.dense became nan"):
        measured(write_engine(tmp_path / "engine", model), [(1, 2, 3)])


def test_a_meter_tells_nothing_seen_from_zero() -> None:
    meter = Meter()
    meter.see(torch.empty(0, 4))
    assert meter.largest is None
    meter.see(torch.zeros(2, 2))
    assert meter.largest == 0
    meter.see(torch.tensor([-3.0, 2.0]))
    assert meter.largest == 3
