"""An engine is its checkpoint under one more name, plus sizes; an incomplete checkpoint makes none."""

import json
from pathlib import Path

import pytest
from tests.fakes.tiny_model import config_of, write_model
from tests.verbs.test_convert import converted

from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.recipe import DraftTargetSpeculator, Limits, Speculator
from draftyard.rules.trtllm import reference_engine_config
from draftyard.verbs.compile import make_engine
from draftyard.verbs.making import Workplace

DRAFT = DraftTargetSpeculator(kind=SpeculatorKind.DRAFT_TARGET, path="draft", max_draft_len=3)


def step_for(checkpoint: Path, speculator: Speculator | None, inputs: tuple[str, ...]) -> Step:
    config = reference_engine_config(
        checkpoint=json.loads((checkpoint / "config.json").read_text()),
        limits=Limits(max_batch_size=2, max_input_len=32, max_seq_len=64, max_num_tokens=64),
        speculator=speculator,
        kv_cache_tokens=128,
        tensorrt_llm_version="1.2.1",
    )
    return Step(StepKind.ENGINE, "e", {"lane": "reference", "gpu": "cpu", "config": config}, inputs, {})


def workplace_for(tmp_path: Path) -> Workplace:
    staging = tmp_path / "engine"
    staging.mkdir()
    return Workplace(staging, lambda key: tmp_path / key, (), lambda share, words: None)


def test_files_are_linked_and_the_config_is_the_steps(tmp_path: Path) -> None:
    checkpoint = converted(write_model(tmp_path / "m"), tmp_path / "target", Precision.FP32, 2)
    step = step_for(checkpoint, None, ("target",))
    notes = make_engine(step, workplace_for(tmp_path))
    assert notes == ("2 rank files linked",)
    files = sorted(path.name for path in (tmp_path / "engine").iterdir())
    assert files == ["config.json", "rank0.safetensors", "rank1.safetensors"]
    assert (tmp_path / "engine/rank1.safetensors").samefile(checkpoint / "rank1.safetensors")
    assert json.loads((tmp_path / "engine/config.json").read_text()) == step.parameters["config"]


def test_a_draft_gets_its_own_directory(tmp_path: Path) -> None:
    target = converted(write_model(tmp_path / "m"), tmp_path / "target", Precision.FP32)
    small = config_of(num_hidden_layers=1)
    draft = converted(write_model(tmp_path / "d", small), tmp_path / "draft", Precision.FP32)
    make_engine(step_for(target, DRAFT, ("target", "draft")), workplace_for(tmp_path))
    config = json.loads((tmp_path / "engine/draft/config.json").read_text())
    assert config["pretrained_config"]["num_hidden_layers"] == 1
    assert config["build_config"]["max_seq_len"] == 67
    assert (tmp_path / "engine/draft/rank0.safetensors").samefile(draft / "rank0.safetensors")


@pytest.mark.parametrize(("speculator", "inputs"), [(DRAFT, ("target",)), (None, ("target", "target"))])
def test_inputs_must_fit_the_speculator(tmp_path: Path, speculator: Speculator | None, inputs: tuple[str, ...]) -> None:
    checkpoint = converted(write_model(tmp_path / "m"), tmp_path / "target", Precision.FP32)
    with pytest.raises(ValueError, match="checkpoints, not"):
        make_engine(step_for(checkpoint, speculator, inputs), workplace_for(tmp_path))


def test_another_checkpoint_than_planned_is_refused(tmp_path: Path) -> None:
    checkpoint = converted(write_model(tmp_path / "m"), tmp_path / "target", Precision.FP32)
    step = step_for(checkpoint, None, ("target",))
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "rotary_base": 5.0}))
    with pytest.raises(Failure, match="not the one the engine was planned for"):
        make_engine(step, workplace_for(tmp_path))


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    checkpoint = converted(write_model(tmp_path / "m"), tmp_path / "target", Precision.FP32, 2)
    step = step_for(checkpoint, None, ("target",))
    (checkpoint / "rank1.safetensors").unlink()
    with pytest.raises(Failure, match=r"rank1\.safetensors is missing"):
        make_engine(step, workplace_for(tmp_path))
    assert not (tmp_path / "engine/config.json").exists()


def test_a_file_of_another_cut_is_refused(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    checkpoint = converted(directory, tmp_path / "target", Precision.FP32)
    other = converted(directory, tmp_path / "other", Precision.FP32, 2)
    step = step_for(checkpoint, None, ("target",))
    (checkpoint / "rank0.safetensors").write_bytes((other / "rank0.safetensors").read_bytes())
    with pytest.raises(Failure, match=r"not what its config\.json promises: lm_head\.weight, transformer\.layers\.0"):
        make_engine(step, workplace_for(tmp_path))
