"""Directories as transformers itself writes them: read, converted, and merged back to the weights in memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.fakes.tiny_model import write_tokenizer
from tests.verbs.test_convert import converted, merged, step_for, workplace_for
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

from draftyard.nouns.network import Precision
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.inspect import inspect

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def saved(directory: Path, model: PreTrainedModel, shard_size: str = "5GB") -> Path:
    model.save_pretrained(directory, max_shard_size=shard_size)
    write_tokenizer(directory)
    return directory


def check(directory: Path, staging: Path, tp_size: int) -> None:
    back = merged(converted(directory, staging, Precision.FP32, tp_size), directory, tp_size, 1)
    wanted = {name: value for path in directory.glob("*.safetensors") for name, value in load_file(path).items()}
    assert set(back) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_array_equal(back[name], values)


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_llama(tmp_path: Path, tied: bool, tp_size: int) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied, rope_parameters=LLAMA3))
    directory = saved(tmp_path / "m", model, "20KB")
    source = inspect(directory)
    assert len({tensor.file for tensor in source.tensors}) > 1
    assert source.network.rotary_base == 5e5
    assert source.network.rotary_scaling is not None
    assert dict(source.network.rotary_scaling.values)["factor"] == 8.0
    check(directory, tmp_path / "c", tp_size)


def test_the_other_families(tmp_path: Path) -> None:
    torch.manual_seed(0)
    models = (
        MistralForCausalLM(MistralConfig(**SIZES, head_dim=16)),
        MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=3)),
        Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
    )
    for model in models:
        name = model.config.model_type
        check(saved(tmp_path / name, model), tmp_path / f"{name}-checkpoint", 2)


def test_bfloat16_passes_through_and_widens_exactly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).to(torch.bfloat16)
    directory = saved(tmp_path / "m", model)
    back = merged(converted(directory, tmp_path / "wide", Precision.FP32), directory, 1, 1)
    for name, values in back.items():
        np.testing.assert_array_equal(values, model.state_dict()[name].float().numpy())
    narrow = converted(directory, tmp_path / "narrow", Precision.BF16)
    step = step_for(directory, Precision.FP16)
    notes = make_checkpoint(step, workplace_for(directory, tmp_path / "half"))
    assert any("activations may overflow" in note for note in notes)
    assert (narrow / "rank0.safetensors").stat().st_size < (tmp_path / "wide/rank0.safetensors").stat().st_size
