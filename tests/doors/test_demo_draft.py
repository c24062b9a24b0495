"""The demo draft out of its small weights: exact projections, an ordinary directory, and its refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tests.fakes import tiny_gguf

from draftyard.doors import demo_trained
from draftyard.doors.demo_artifact import bfloat16_bytes, file_digest, float32_of_bfloat16
from draftyard.doors.demo_draft import materialise_draft, projected, write_draft
from draftyard.doors.demo_target import write_model
from draftyard.doors.tensors import open_tensor_file
from draftyard.nouns.errors import Failure

WIDTH, INNER = 128, 192


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    write_model(tiny_gguf.write_gguf(tmp_path / "tiny.gguf"), directory)
    return directory


def draft_weights() -> dict[str, NDArray[np.float32]]:
    draw = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {
        "project_in": (tiny_gguf.HIDDEN, WIDTH),
        "project_out": (tiny_gguf.HIDDEN, WIDTH),
        "norm.weight": (WIDTH,),
        "layers.0.input_layernorm.weight": (WIDTH,),
        "layers.0.post_attention_layernorm.weight": (WIDTH,),
        "layers.0.mlp.gate_proj.weight": (INNER, WIDTH),
        "layers.0.mlp.up_proj.weight": (INNER, WIDTH),
        "layers.0.mlp.down_proj.weight": (WIDTH, INNER),
        "layers.0.self_attn.q_proj.weight": (128, WIDTH),
        "layers.0.self_attn.k_proj.weight": (64, WIDTH),
        "layers.0.self_attn.v_proj.weight": (64, WIDTH),
        "layers.0.self_attn.o_proj.weight": (WIDTH, 128),
    }
    return {name: (0.1 * draw.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def trained(tmp_path: Path, target: Path) -> Path:
    directory = tmp_path / "trained"
    directory.mkdir()
    save_file(draft_weights(), directory / "weights.safetensors")
    trial = tmp_path / "trial"
    trial.mkdir()
    write_draft(target, directory / "weights.safetensors", trial)
    receipt = {
        "weights_sha256": file_digest(directory / "weights.safetensors"),
        "model_sha256": file_digest(trial / "model.safetensors"),
    }
    (directory / "receipt.json").write_text(json.dumps(receipt))
    return directory


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 64))
def test_projections_do_not_depend_on_the_order_of_adding(seed: int, width: int) -> None:
    draw = np.random.default_rng(seed)
    embedding = draw.standard_normal((50, width)).astype(np.float32)
    projection = draw.standard_normal((width, 7)).astype(np.float32)
    order = draw.permutation(width)
    assert np.array_equal(projected(embedding, projection), projected(embedding[:, order], projection[order]))


def test_projections_are_products() -> None:
    draw = np.random.default_rng(1)
    embedding = draw.standard_normal((5000, 12)).astype(np.float32)
    projection = draw.standard_normal((12, 3)).astype(np.float32)
    np.testing.assert_allclose(projected(embedding, projection), embedding @ projection, atol=1e-4)


def test_projections_too_large_to_be_exact_are_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        projected(np.full((4, 64), 100.0, dtype=np.float32), np.full((64, 2), 100.0, dtype=np.float32))


def test_the_draft_is_an_ordinary_directory(tmp_path: Path, target: Path, trained: Path) -> None:
    directory = tmp_path / "models" / "draft"
    digests = materialise_draft(target, trained, directory)
    config = json.loads((directory / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]) == (WIDTH, INNER, 1)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (2, 1, 64)
    assert config["tie_word_embeddings"] is False
    assert config["vocab_size"] == len(tiny_gguf.TOKENS)
    assert (directory / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    file = open_tensor_file(directory / "model.safetensors")
    embedding = float32_of_bfloat16(
        open_tensor_file(target / "model.safetensors").read("model.embed_tokens.weight"),
        (len(tiny_gguf.TOKENS), tiny_gguf.HIDDEN),
    )
    head = float32_of_bfloat16(file.read("lm_head.weight"), file.headers["lm_head.weight"].shape)
    np.testing.assert_allclose(head, embedding @ draft_weights()["project_out"], rtol=0.01, atol=0.01)
    assert file.read("model.norm.weight") == bfloat16_bytes(draft_weights()["norm.weight"])
    assert digests["model.safetensors"] == file_digest(directory / "model.safetensors")


def test_transformers_loads_every_weight_of_the_draft(tmp_path: Path, target: Path, trained: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    directory = tmp_path / "models" / "draft"
    materialise_draft(target, trained, directory)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert torch.isfinite(model(torch.arange(20)[None]).logits).all()


def test_a_second_run_changes_nothing(tmp_path: Path, target: Path, trained: Path) -> None:
    directory = tmp_path / "models" / "draft"
    first = materialise_draft(target, trained, directory)
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert materialise_draft(target, trained, directory) == first
    assert (directory / "model.safetensors").stat().st_mtime_ns == written


def test_weights_of_another_training_are_refused(tmp_path: Path, target: Path, trained: Path) -> None:
    save_file({**draft_weights(), "extra": np.ones(3, dtype=np.float32)}, trained / "weights.safetensors")
    directory = tmp_path / "models" / "draft"
    with pytest.raises(Failure, match="expected"):
        materialise_draft(target, trained, directory)
    assert not directory.exists()


def test_a_result_other_than_the_receipts_is_refused(tmp_path: Path, target: Path, trained: Path) -> None:
    receipt = json.loads((trained / "receipt.json").read_text())
    (trained / "receipt.json").write_text(json.dumps({**receipt, "model_sha256": "0" * 64}))
    directory = tmp_path / "models" / "draft"
    with pytest.raises(Failure, match="expected"):
        materialise_draft(target, trained, directory)
    assert sorted(path.name for path in directory.parent.iterdir()) == []


@pytest.mark.parametrize("content", ["{}", "no json"])
def test_an_unusable_receipt_is_refused(tmp_path: Path, target: Path, trained: Path, content: str) -> None:
    (trained / "receipt.json").write_text(content)
    with pytest.raises(Failure, match="cannot be used"):
        materialise_draft(target, trained, tmp_path / "models" / "draft")


def test_half_precision_weights_are_refused(tmp_path: Path, target: Path, trained: Path) -> None:
    halves = {name: values.astype(np.float16) for name, values in draft_weights().items()}
    save_file(halves, trained / "weights.safetensors")
    with pytest.raises(Failure, match="F16"):
        write_draft(target, trained / "weights.safetensors", tmp_path)


def test_missing_shipped_weights_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_trained, "ROOTS", (tmp_path,))
    with pytest.raises(Failure) as caught:
        demo_trained.shipped_weights("draft")
    assert "train_draft.py" in caught.value.hint
