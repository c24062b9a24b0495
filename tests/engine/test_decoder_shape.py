"""What an engine's `pretrained_config` may leave out, or say with a null."""

import pytest

from draftyard.engine.configuration import decoder_shape
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure

CONFIG: dict[str, Json] = {
    "architecture": "LlamaForCausalLM",
    "dtype": "float16",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "norm_epsilon": 1e-5,
    "rotary_base": 1e4,
    "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
}
OPTIONAL = ("num_key_value_heads", "head_size", "rotary_scaling", "sliding_window", "moe", "quantization")


@pytest.mark.parametrize("key", OPTIONAL)
def test_null_equals_absence(key: str) -> None:
    """NVIDIA/TensorRT-LLM#1063: nulls of optional fields raise no word."""
    assert decoder_shape({**CONFIG, key: None}) == decoder_shape(CONFIG)


def test_a_null_method_of_quantisation_is_none() -> None:
    block: Json = {"quant_algo": None, "kv_cache_quant_algo": None}
    assert decoder_shape({**CONFIG, "quantization": block}) == decoder_shape(CONFIG)


def test_what_is_derived() -> None:
    shape = decoder_shape(CONFIG)
    assert (shape.kv_heads, shape.head_size, shape.experts) == (4, 16, 0)


def test_experts() -> None:
    moe: dict[str, Json] = {"num_experts": 8, "top_k": 2, "normalization_mode": 1}
    shape = decoder_shape({**CONFIG, "moe": moe, "hidden_act": "swiglu"})
    assert (shape.experts, shape.experts_per_token, shape.experts_normalised) == (8, 2, True)
    assert not decoder_shape({**CONFIG, "moe": {**moe, "normalization_mode": 0}}).experts_normalised
    with pytest.raises(Failure, match="normalisation 2 of a mixture of experts"):
        decoder_shape({**CONFIG, "moe": {**moe, "normalization_mode": 2}})
    with pytest.raises(Failure, match="top_k must be a whole number"):
        decoder_shape({**CONFIG, "moe": {"num_experts": 8}})
