"""Weights in pickles: refused without permission, and with it the same checkpoint as from safetensors."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.test_pickled_weights import Command
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.fakes.tiny_recipe import write_recipe
from tests.fakes.tiny_speculators import eagle3_weights, layer_config, medusa_weights, write_speculator
from tests.verbs.test_convert import workplace_for

from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.rules.trtllm import checkpoint_config
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.inspect import inspect, inspect_speculator


def pickled(directory: Path, weights: Mapping[str, np.ndarray], shards: int = 1) -> Path:
    """Replace the safetensors file by pickles, with an index when there are several."""
    (directory / "model.safetensors").unlink(missing_ok=True)
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    if shards == 1:
        torch.save(tensors, directory / "pytorch_model.bin")
        return directory
    where: dict[str, str] = {}
    for shard in range(shards):
        name = f"pytorch_model-{shard + 1:05d}-of-{shards:05d}.bin"
        part = {key: value for place, (key, value) in enumerate(sorted(tensors.items())) if place % shards == shard}
        torch.save(part, directory / name)
        where |= dict.fromkeys(part, name)
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return directory


def checkpoint(directory: Path, staging: Path, allowed: bool) -> Path:
    source = inspect(directory, allow_pickle=allowed)
    config = checkpoint_config(source.network, Precision.FP16, 2, 1)
    parameters = {"role": "target", "config": config, **({"allow_pickle": True} if allowed else {})}
    step = Step(StepKind.CHECKPOINT, "c", parameters, (source.digest,), {}, (str(directory),))
    make_checkpoint(step, workplace_for(directory, staging))
    return staging


@pytest.mark.parametrize("shards", [1, 3])
def test_the_same_checkpoint_as_from_safetensors(tmp_path: Path, shards: int) -> None:
    weights = random_weights(config_of())
    safe = checkpoint(write_model(tmp_path / "safe", None, weights), tmp_path / "c1", False)
    directory = pickled(write_model(tmp_path / "pickled", None, weights), weights, shards)
    assert any("the weights are pickles" in note for note in inspect(directory, allow_pickle=True).notes)
    other = checkpoint(directory, tmp_path / "c2", True)
    for name in ("config.json", "rank0.safetensors", "rank1.safetensors"):
        assert (safe / name).read_bytes() == (other / name).read_bytes()


def test_without_permission_nothing_is_opened(tmp_path: Path) -> None:
    directory = pickled(write_model(tmp_path / "m"), random_weights(config_of()))
    with pytest.raises(
        Failure, match=r"the weights are pickles \(pytorch_model\.bin\), which are not opened"
    ) as caught:
        inspect(directory)
    assert "allow_pickle: true" in caught.value.hint
    source = inspect(directory, allow_pickle=True)
    config = checkpoint_config(source.network, Precision.FP16, 1, 1)
    step = Step(StepKind.CHECKPOINT, "c", {"role": "target", "config": config}, (source.digest,), {}, ())
    with pytest.raises(Failure, match="which are not opened"):
        make_checkpoint(step, workplace_for(directory, tmp_path / "c"))


def test_a_hostile_model_runs_nothing_even_with_permission(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    (directory / "model.safetensors").unlink()
    torch.save({"weight": Command(f"touch {tmp_path / 'ran'}")}, directory / "pytorch_model.bin")
    with pytest.raises(Failure, match=r"asks for posix\.system"):
        inspect(directory, allow_pickle=True)
    assert not (tmp_path / "ran").exists()


def test_a_complete_safetensors_set_wins_even_with_permission(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    (directory / "pytorch_model-00001-of-00002.bin").write_bytes(b"0123456789")
    source = inspect(directory, allow_pickle=True)
    assert not source.pickled
    assert any("ignored: pytorch_model-00001-of-00002.bin" in note for note in source.notes)


def test_a_broken_shard_is_named_and_leftovers_of_trainers_do_not_count(tmp_path: Path) -> None:
    weights = random_weights(config_of())
    directory = pickled(write_model(tmp_path / "m"), weights, 2)
    for name in ("training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        (directory / name).write_bytes(b"0123456789")
    assert inspect(directory, allow_pickle=True).parameter_count == sum(value.size for value in weights.values())
    (directory / "pytorch_model-00001-of-00002.bin").write_bytes(b"0123456789")
    with pytest.raises(Failure, match=r"pytorch_model-00001-of-00002\.bin is no file of torch\.save"):
        inspect(directory, allow_pickle=True)
    (directory / "pytorch_model-00001-of-00002.bin").unlink()
    with pytest.raises(Failure, match=r"the shard pytorch_model-00001-of-00002\.bin is missing; it holds"):
        inspect(directory, allow_pickle=True)


def test_several_pickles_without_an_index(tmp_path: Path) -> None:
    directory = pickled(write_model(tmp_path / "m"), random_weights(config_of()), 2)
    (directory / "pytorch_model.bin.index.json").unlink()
    with pytest.raises(Failure, match=r"without pytorch_model\.bin\.index\.json"):
        inspect(directory, allow_pickle=True)


def test_the_recipe_permits_each_model_by_itself(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    plain = draw_recipe(recipe, None).blueprint
    pickled(tmp_path / "target", random_weights(config_of()))
    with pytest.raises(Failure, match="which are not opened"):
        draw_recipe(recipe, None)
    allowed = write_recipe(tmp_path, (("{path: target}", "{path: target, allow_pickle: true}"),))
    steps = draw_recipe(allowed, None).blueprint.steps
    checkpoints = {str(step.parameters["role"]): step for step in steps if step.kind is StepKind.CHECKPOINT}
    assert checkpoints["target"].parameters["allow_pickle"] is True
    assert "allow_pickle" not in checkpoints["draft"].parameters
    assert checkpoints["draft"].key in {step.key for step in plain.steps}, "the permission changes no other key"


@pytest.mark.parametrize(
    ("kind", "name"), [(SpeculatorKind.MEDUSA, "medusa_lm_head.pt"), (SpeculatorKind.EAGLE3, "pytorch_model.bin")]
)
def test_heads_as_their_authors_pickled_them(tmp_path: Path, kind: SpeculatorKind, name: str) -> None:
    weights = medusa_weights() if kind is SpeculatorKind.MEDUSA else eagle3_weights()
    config = None if kind is SpeculatorKind.MEDUSA else layer_config()
    safe = inspect_speculator(write_speculator(tmp_path / "safe", weights, config), kind)
    directory = write_speculator(tmp_path / "pickled", weights, config)
    (directory / "model.safetensors").unlink()
    torch.save({key: torch.from_numpy(value) for key, value in weights.items()}, directory / name)
    with pytest.raises(Failure, match="which are not opened"):
        inspect_speculator(directory, kind)
    found = inspect_speculator(directory, kind, allow_pickle=True)
    assert found.pickled
    assert found.network == safe.network
    assert [(one.name, one.type, one.shape) for one in found.tensors] == [
        (one.name, one.type, one.shape) for one in safe.tensors
    ]
