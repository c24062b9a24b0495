"""The committed draft: small, described by its receipt, and counted correctly."""

import json
from pathlib import Path

import pytest

from draftyard.doors.demo_artifact import file_digest
from draftyard.doors.demo_draft import config_document
from draftyard.doors.demo_trained import TRAINING_RECEIPT, WEIGHTS, shipped_weights
from draftyard.doors.tensors import read_tensor_headers
from draftyard.verbs.demo_model import DRAFT_NAME, TARGET_NAME, demo_model

MODELS = Path(__file__).parents[2] / "engines/out/models"


def test_the_weights_are_small() -> None:
    assert (shipped_weights("draft") / WEIGHTS).stat().st_size < 25_000_000


def test_the_receipt_describes_the_weights_and_their_training() -> None:
    receipt = json.loads((shipped_weights("draft") / TRAINING_RECEIPT).read_text(encoding="utf-8"))
    assert receipt["weights_sha256"] == file_digest(shipped_weights("draft") / WEIGHTS)
    assert len(receipt["model_sha256"]) == 64
    assert receipt["training_minutes"] > 0
    assert receipt["training_answer_tokens"] > 0
    assert receipt["estimated_flops"] > 0
    assert receipt["settings"]["seed"] is not None
    assert set(receipt["versions"]) >= {"python", "torch", "transformers"}
    last = receipt["rounds"][-1]
    assert 0 < last["agreement"] < 1
    assert 1 < last["acceptance_length"] < 5


def test_the_weights_make_a_llama() -> None:
    headers, _ = read_tensor_headers(shipped_weights("draft") / WEIGHTS)
    receipt = json.loads((shipped_weights("draft") / TRAINING_RECEIPT).read_text(encoding="utf-8"))
    config = config_document({}, headers)
    assert config["hidden_size"] == receipt["settings"]["hidden_size"]
    assert config["num_hidden_layers"] == receipt["settings"]["layers"]
    per_layer = {name.split(".", 2)[2] for name in headers if name.startswith("layers.")}
    assert len(headers) == 3 + len(per_layer) * receipt["settings"]["layers"]
    assert headers["project_in"].shape == headers["project_out"].shape == (576, config["hidden_size"])


@pytest.mark.parametrize(
    ("agrees", "steps"),
    [
        ("", 0),
        ("1", 0),
        ("11111", 1),
        ("111111", 1),
        ("1111111", 2),
        ("0000", 3),
        ("0100", 2),
        ("011110", 1),
    ],
)
def test_steps_count_the_prefill_apart_and_the_extra_token(agrees: str, steps: int) -> None:
    pytest.importorskip("transformers")
    from engines.demo.measure_draft import steps_needed

    assert steps_needed([mark == "1" for mark in agrees], 4) == steps


@pytest.mark.skipif(
    not (MODELS / TARGET_NAME).is_dir() or not (MODELS / DRAFT_NAME).is_dir(),
    reason="the demo models were not made (draftyard demo-model engines/out/models)",
)
def test_made_models_are_recognised_without_the_wheel() -> None:
    models = demo_model(MODELS, Path("no.whl"))
    assert models.target_dir == MODELS / TARGET_NAME
    assert f"{DRAFT_NAME}/model.safetensors" in dict(models.digests)
