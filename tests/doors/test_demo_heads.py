"""The demo's Medusa and EAGLE heads out of their committed weights: ordinary directories, and their refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tests.fakes import tiny_gguf

from draftyard.doors.demo_artifact import file_digest, float32_of_bfloat16
from draftyard.doors.demo_heads import materialise_eagle, materialise_medusa, write_eagle, write_medusa
from draftyard.doors.demo_target import write_model
from draftyard.doors.tensors import open_tensor_file
from draftyard.nouns.errors import Failure
from draftyard.nouns.tensor import TensorType

HIDDEN, INNER, DRAFTED = tiny_gguf.HIDDEN, 96, (0, 2, 3, 7)
Write = Callable[[Path, Path, Path], None]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    write_model(tiny_gguf.write_gguf(tmp_path / "tiny.gguf"), directory)
    return directory


def medusa_weights() -> dict[str, NDArray[np.generic]]:
    draw = np.random.default_rng(1)
    weights: dict[str, NDArray[np.generic]] = {}
    for head in range(3):
        weights[f"{head}.0.linear.weight"] = draw.standard_normal((HIDDEN, HIDDEN)).astype(np.float16)
        weights[f"{head}.0.linear.bias"] = draw.standard_normal(HIDDEN).astype(np.float16)
    return weights


def eagle_weights(drafted: tuple[int, ...] = DRAFTED) -> dict[str, NDArray[np.generic]]:
    draw = np.random.default_rng(2)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        "fc.bias": (HIDDEN,),
        "layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "layers.0.self_attn.k_proj.weight": (64, HIDDEN),
        "layers.0.self_attn.v_proj.weight": (64, HIDDEN),
        "layers.0.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
        "layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
        "layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
        "layers.0.post_attention_layernorm.weight": (HIDDEN,),
    }
    weights: dict[str, NDArray[np.generic]] = {
        name: draw.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()
    }
    return weights | {"d2t": np.array(drafted, dtype=np.int64) - np.arange(len(drafted))}


def train(directory: Path, weights: dict[str, NDArray[np.generic]], target: Path, write: Write) -> Path:
    """A directory of weights and their receipt, as training and sealing leave it."""
    directory.mkdir(exist_ok=True)
    save_file(weights, directory / "weights.safetensors")
    trial = directory / "trial"
    trial.mkdir()
    write(target, directory / "weights.safetensors", trial)
    receipt = {
        "weights_sha256": file_digest(directory / "weights.safetensors"),
        "model_sha256": file_digest(trial / "model.safetensors"),
    }
    (directory / "receipt.json").write_text(json.dumps(receipt))
    return directory


def test_medusa_heads_have_the_published_layout(tmp_path: Path, target: Path) -> None:
    trained = train(tmp_path / "trained", medusa_weights(), target, write_medusa)
    directory = tmp_path / "models/medusa"
    digests = materialise_medusa(target, trained, directory)
    config = json.loads((directory / "config.json").read_text())
    assert (config["medusa_num_heads"], config["medusa_num_layers"], config["hidden_size"]) == (3, 1, HIDDEN)
    assert (directory / "model.safetensors").read_bytes() == (trained / "weights.safetensors").read_bytes()
    assert digests["model.safetensors"] == file_digest(directory / "model.safetensors")


def test_the_eagle_head_takes_its_rows_from_the_target(tmp_path: Path, target: Path) -> None:
    trained = train(tmp_path / "trained", eagle_weights(), target, write_eagle)
    directory = tmp_path / "models/eagle"
    materialise_eagle(target, trained, directory)
    config = json.loads((directory / "config.json").read_text())
    assert (config["draft_vocab_size"], config["vocab_size"]) == (len(DRAFTED), len(tiny_gguf.TOKENS))
    assert (config["num_hidden_layers"], config["intermediate_size"], config["bias"]) == (1, INNER, True)
    file = open_tensor_file(directory / "model.safetensors")
    assert file.headers["d2t"].type is TensorType.I64
    embedding = float32_of_bfloat16(
        open_tensor_file(target / "model.safetensors").read("model.embed_tokens.weight"),
        (len(tiny_gguf.TOKENS), HIDDEN),
    )
    head = np.frombuffer(file.read("lm_head.weight"), dtype="<f2").reshape(file.headers["lm_head.weight"].shape)
    assert np.array_equal(head, embedding[list(DRAFTED)].astype(np.float16))
    for name, values in eagle_weights().items():
        assert file.read(name) == np.ascontiguousarray(values).reshape(-1).data.cast("B")


def test_a_second_run_changes_nothing_and_another_training_does(tmp_path: Path, target: Path) -> None:
    trained = train(tmp_path / "trained", eagle_weights(), target, write_eagle)
    directory = tmp_path / "models/eagle"
    first = materialise_eagle(target, trained, directory)
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert materialise_eagle(target, trained, directory) == first
    assert (directory / "model.safetensors").stat().st_mtime_ns == written
    other = train(tmp_path / "other", eagle_weights((1, 4)), target, write_eagle)
    assert materialise_eagle(target, other, directory) != first


def test_a_vocabulary_outside_the_targets_is_refused(tmp_path: Path, target: Path) -> None:
    save_file(eagle_weights((1, len(tiny_gguf.TOKENS))), tmp_path / "weights.safetensors")
    with pytest.raises(Failure, match="outside the target's"):
        write_eagle(target, tmp_path / "weights.safetensors", tmp_path)


def test_weights_of_another_training_are_refused(tmp_path: Path, target: Path) -> None:
    trained = train(tmp_path / "trained", medusa_weights(), target, write_medusa)
    save_file({**medusa_weights(), "3.0.linear.bias": np.ones(HIDDEN)}, trained / "weights.safetensors")
    with pytest.raises(Failure, match="expected"):
        materialise_medusa(target, trained, tmp_path / "models/medusa")
    assert not (tmp_path / "models/medusa").exists()
