"""Rows that round a vocabulary up to a multiple of the ranks never become tokens, even where zero is the largest."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.verbs.test_convert import converted
from tests.verbs.test_family_agreement import executed

from draftyard.doors.config_files import read_config
from draftyard.engine.runs import Run
from draftyard.nouns.network import Precision
from draftyard.rules.shards import padded_vocabulary
from draftyard.rules.trtllm import expected_tensors


def negative_model(directory: Path, tied: bool) -> Path:
    """Layers that add nothing, positive embeddings, and a head that makes every logit negative."""
    config = config_of(tie_word_embeddings=tied)
    weights = random_weights(config)
    for name, value in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            value[:] = 0
        if "embed_tokens" in name:
            value[:] = np.abs(value) + 0.1
        if name in ("model.norm.weight", "lm_head.weight"):
            value[:] = -1 if tied or name == "lm_head.weight" else 1
    return write_model(directory, config, weights)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("tp_size", "pp_size"), [(4, 1), (4, 3)])
def test_padding_never_wins(tmp_path: Path, tied: bool, tp_size: int, pp_size: int) -> None:
    directory = negative_model(tmp_path / "m", tied)
    checkpoint = converted(directory, tmp_path / "c", Precision.FP32, tp_size, pp_size)
    last = load_file(checkpoint / f"rank{tp_size * pp_size - 1}.safetensors")["lm_head.weight"]
    assert last.shape[0] * tp_size == 52
    np.testing.assert_array_equal(last[-2:], 0)
    with torch.inference_mode():
        logits = executed(checkpoint).forward([Run(0, 0, (3, 4, 5), 0)])
    assert logits.shape == (3, 50)
    assert (logits < 0).all(), "a padded row would give 0 and win"


@pytest.mark.parametrize("vocabulary", [50, 52, 53, 55])
def test_files_config_and_rule_agree_on_the_padding(tmp_path: Path, vocabulary: int) -> None:
    """NVIDIA/TensorRT-LLM#301: padded on one of two sides, the shapes do not fit."""
    directory = write_model(tmp_path / "m", config_of(vocab_size=vocabulary))
    checkpoint = converted(directory, tmp_path / "c", Precision.FP16, 4)
    config = read_config(checkpoint / "config.json")
    assert config["vocab_size"] == vocabulary, "the config keeps what the tokenizer knows"
    rows = [len(load_file(checkpoint / f"rank{rank}.safetensors")["lm_head.weight"]) for rank in range(4)]
    assert set(rows) == {padded_vocabulary(vocabulary, 4) // 4}
    for rank in range(4):
        stored = load_file(checkpoint / f"rank{rank}.safetensors")
        promised = {name: shape for name, (_, shape) in expected_tensors(config, rank).items()}
        assert {name: value.shape for name, value in stored.items()} == promised
