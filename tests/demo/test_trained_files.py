"""The committed draft, Medusa heads and EAGLE head: small, described by their receipts, and counted correctly."""

import json
from pathlib import Path

import pytest

from draftyard.doors.demo_artifact import file_digest
from draftyard.doors.demo_draft import config_document
from draftyard.doors.demo_heads import eagle_config, medusa_config
from draftyard.doors.demo_trained import TRAINING_RECEIPT, WEIGHTS, shipped_weights
from draftyard.doors.tensors import read_tensor_headers
from draftyard.nouns.digest import Json
from draftyard.nouns.tensor import TensorHeader
from draftyard.verbs.demo_model import DRAFT_NAME, EAGLE_NAME, MEDUSA_NAME, TARGET_NAME, demo_model

MODELS = Path(__file__).parents[2] / "engines/out/models"
KINDS = ("draft", "medusa", "eagle")
HIDDEN, VOCABULARY = 576, 49152
TARGET_CONFIG: dict[str, Json] = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY}


def receipt_of(kind: str) -> dict[str, Json]:
    document: dict[str, Json] = json.loads((shipped_weights(kind) / TRAINING_RECEIPT).read_text(encoding="utf-8"))
    return document


def headers_of(kind: str) -> dict[str, TensorHeader]:
    return read_tensor_headers(shipped_weights(kind) / WEIGHTS)[0]


def test_the_weights_are_small() -> None:
    assert sum((shipped_weights(kind) / WEIGHTS).stat().st_size for kind in KINDS) < 25_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_the_receipt_describes_the_weights_and_their_training(kind: str) -> None:
    receipt = receipt_of(kind)
    assert receipt["weights_sha256"] == file_digest(shipped_weights(kind) / WEIGHTS)
    assert len(receipt["model_sha256"]) == 64
    assert receipt["training_minutes"] > 0
    assert receipt["training_answer_tokens"] > 0
    assert receipt["estimated_flops"] > 0
    assert receipt["settings"]["seed"] is not None
    assert set(receipt["versions"]) >= {"python", "torch", "transformers"}
    assert receipt["rounds"] and receipt["shards_joined_in_round"]
    stored = sum(
        header.size_bytes // header.type.item_bytes for name, header in headers_of(kind).items() if name != "d2t"
    )
    assert receipt["trained_parameters"] == stored


def test_the_draft_makes_a_llama() -> None:
    headers, receipt = headers_of("draft"), receipt_of("draft")
    config = config_document({}, headers)
    assert config["hidden_size"] == receipt["settings"]["hidden_size"]
    assert config["num_hidden_layers"] == receipt["settings"]["layers"]
    per_layer = {name.split(".", 2)[2] for name in headers if name.startswith("layers.")}
    assert len(headers) == 3 + len(per_layer) * receipt["settings"]["layers"]
    assert headers["project_in"].shape == headers["project_out"].shape == (HIDDEN, config["hidden_size"])
    last = receipt["rounds"][-1]
    assert 0 < last["agreement"] < 1
    assert 1 < last["acceptance_length"] < 5


def test_medusa_heads_are_residual_blocks_of_the_target() -> None:
    headers, receipt = headers_of("medusa"), receipt_of("medusa")
    config = medusa_config(TARGET_CONFIG, headers)
    assert config["medusa_num_heads"] == receipt["settings"]["heads"]
    assert config["medusa_num_layers"] == 1
    assert {header.shape for header in headers.values()} == {(HIDDEN, HIDDEN), (HIDDEN,)}
    held_out = receipt["held_out"]
    assert held_out["head_0_first"] > held_out["head_1_first"] > held_out["head_2_first"] > 0


def test_the_eagle_head_is_one_layer_with_a_reduced_vocabulary() -> None:
    headers, receipt = headers_of("eagle"), receipt_of("eagle")
    config = eagle_config(TARGET_CONFIG, headers)
    assert config["num_hidden_layers"] == 1
    assert config["draft_vocab_size"] == receipt["draft_vocabulary"] < VOCABULARY
    assert headers["fc.weight"].shape == (HIDDEN, 2 * HIDDEN)
    held_out = receipt["held_out"]
    assert 1 > held_out["step_0"] > held_out["step_1"] > 0
    assert 1 < held_out["acceptance_length"] < 5


@pytest.mark.parametrize(
    ("agrees", "steps"),
    [("", 0), ("1", 1), ("0", 1), ("11111", 1), ("111111", 2), ("0000", 4), ("0100", 3), ("11110", 1)],
)
def test_steps_count_the_extra_token(agrees: str, steps: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from engines.demo.train_eagle import DEPTH, chain_steps

    right = torch.tensor([[mark == "1" for mark in agrees]] * DEPTH, dtype=torch.bool)
    assert chain_steps(right) == steps


@pytest.mark.skipif(
    not all((MODELS / name).is_dir() for name in (TARGET_NAME, DRAFT_NAME, MEDUSA_NAME, EAGLE_NAME)),
    reason="the demo models were not made (draftyard demo-model engines/out/models)",
)
def test_made_models_are_recognised_without_the_wheel() -> None:
    models = demo_model(MODELS, Path("no.whl"))
    assert models.target_dir == MODELS / TARGET_NAME
    for name in (DRAFT_NAME, MEDUSA_NAME, EAGLE_NAME):
        assert f"{name}/model.safetensors" in dict(models.digests)
