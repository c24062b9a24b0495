"""What is written down as a checkpoint's and an engine's config, field by field."""

from dataclasses import replace

import pytest
from tests.rules.test_shards import BASE

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import MixtureOfExperts, Precision
from draftyard.nouns.recipe import (
    DraftTargetSpeculator,
    Eagle3Speculator,
    EagleSpeculator,
    Limits,
    MedusaSpeculator,
    MtpSpeculator,
    NgramSpeculator,
    Speculator,
)
from draftyard.nouns.tensor import TensorType
from draftyard.rules.trtllm import (
    checkpoint_config,
    draft_engine_config,
    expected_tensors,
    reference_engine_config,
    world_size,
)

LIMITS = Limits(max_batch_size=8, max_input_len=32, max_seq_len=64, max_num_tokens=16)
NGRAM = NgramSpeculator(kind=SpeculatorKind.NGRAM, max_draft_len=4, min_match=2, max_match=3)
DRAFT = DraftTargetSpeculator(kind=SpeculatorKind.DRAFT_TARGET, path="draft", max_draft_len=3)


def engine(speculator: Speculator | None) -> dict:
    return reference_engine_config(
        checkpoint=checkpoint_config(BASE, Precision.FP32, 1, 1),
        limits=LIMITS,
        speculator=speculator,
        kv_cache_tokens=512,
        tensorrt_llm_version="1.2.1",
        heads=3 if speculator is not None and speculator.kind is SpeculatorKind.MEDUSA else 0,
    )


def test_a_checkpoint_config_whole() -> None:
    assert checkpoint_config(BASE, Precision.FP16, 2, 3) == {
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
        "logits_dtype": "float32",
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_size": 4,
        "intermediate_size": 16,
        "vocab_size": 9,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "norm_epsilon": 1e-5,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": 1e4,
        "rotary_scaling": None,
        "attn_bias": False,
        "mlp_bias": False,
        "qk_layernorm": False,
        "tie_word_embeddings": False,
        "mapping": {"world_size": 6, "tp_size": 2, "pp_size": 3},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
    }


def test_fp8_is_not_made_by_conversion() -> None:
    with pytest.raises(ValueError, match="not made by conversion"):
        checkpoint_config(BASE, Precision.FP8, 1, 1)


def test_family_keys() -> None:
    assert checkpoint_config(replace(BASE, family="qwen3"), Precision.BF16, 1, 1)["qwen_type"] == "qwen3"
    assert checkpoint_config(replace(BASE, sliding_window=32), Precision.BF16, 1, 1)["sliding_window"] == 32
    sparse = checkpoint_config(replace(BASE, experts=MixtureOfExperts(4, 2, 16, True)), Precision.BF16, 1, 1)
    assert sparse["moe"] == {"num_experts": 4, "top_k": 2, "normalization_mode": 1}
    assert sparse["hidden_act"] == "swiglu"
    assert expected_tensors(sparse, 0)["transformer.layers.0.mlp.fc.weight"] == (TensorType.BF16, (4, 32, 16))
    assert expected_tensors(sparse, 0)["transformer.layers.0.mlp.router.weight"] == (TensorType.F32, (4, 16))


def test_expected_tensors_of_one_rank() -> None:
    config = checkpoint_config(replace(BASE, layers=1), Precision.FP16, 2, 1)
    layer = "transformer.layers.0"
    assert expected_tensors(config, 1) == {
        "transformer.vocab_embedding.weight": (TensorType.F16, (9, 16)),
        f"{layer}.input_layernorm.weight": (TensorType.F16, (16,)),
        f"{layer}.post_layernorm.weight": (TensorType.F16, (16,)),
        f"{layer}.attention.qkv.weight": (TensorType.F16, (16, 16)),
        f"{layer}.attention.dense.weight": (TensorType.F16, (16, 8)),
        f"{layer}.mlp.fc.weight": (TensorType.F16, (8, 16)),
        f"{layer}.mlp.gate.weight": (TensorType.F16, (8, 16)),
        f"{layer}.mlp.proj.weight": (TensorType.F16, (16, 8)),
        "transformer.ln_f.weight": (TensorType.F16, (16,)),
        "lm_head.weight": (TensorType.F16, (5, 16)),
    }


def test_a_mapping_that_contradicts_itself() -> None:
    config = checkpoint_config(BASE, Precision.FP16, 2, 1)
    assert world_size(config) == 2
    with pytest.raises(ValueError, match="world_size 4, but tp_size x pp_size is 2"):
        world_size({**config, "mapping": {"world_size": 4, "tp_size": 2, "pp_size": 1}})


@pytest.mark.parametrize(
    ("speculator", "mode", "draft_len", "seq_len", "num_tokens", "block"),
    [
        (None, 1, 0, 64, 16, {"kind": "none", "max_draft_len": 0}),
        (NGRAM, 2, 4, 68, 40, {"kind": "ngram", "max_draft_len": 4, "min_match": 2, "max_match": 3}),
        (DRAFT, 2, 3, 67, 32, {"kind": "draft_target", "max_draft_len": 3}),
        (
            MedusaSpeculator(kind=SpeculatorKind.MEDUSA, path="h", choices=((1,), (0, 0), (0,)), max_draft_len=5),
            4,
            5,
            69,
            48,
            {"kind": "medusa", "max_draft_len": 5, "depth": 2, "choices": [[0], [1], [0, 0]], "heads": 3},
        ),
        (
            EagleSpeculator(kind=SpeculatorKind.EAGLE, path="n", num_eagle_layers=3, dynamic_tree_max_top_k=2),
            32,
            10,
            74,
            88,
            {
                "kind": "eagle",
                "max_draft_len": 10,
                "depth": 3,
                "choices": None,
                "dynamic_top_k": 2,
                "max_non_leaves_per_layer": 10,
            },
        ),
        (
            Eagle3Speculator(kind=SpeculatorKind.EAGLE3, path="n", depth=3),
            2,
            3,
            67,
            32,
            {
                "kind": "eagle3",
                "max_draft_len": 3,
                "depth": 3,
                "choices": None,
                "dynamic_top_k": None,
                "max_non_leaves_per_layer": 1,
            },
        ),
        (
            MtpSpeculator(kind=SpeculatorKind.MTP, path="m", max_draft_len=2),
            2,
            2,
            66,
            24,
            {"kind": "mtp", "max_draft_len": 2, "depth": 2, "choices": None},
        ),
    ],
)
def test_engine_sizes_grow_with_the_draft(
    speculator: Speculator | None, mode: int, draft_len: int, seq_len: int, num_tokens: int, block: dict
) -> None:
    config = engine(speculator)
    build = config["build_config"]
    assert config["version"] == "1.2.1"
    assert build["speculative_decoding_mode"] == mode
    assert build["max_draft_len"] == draft_len
    assert build["max_seq_len"] == seq_len
    assert build["max_num_tokens"] == num_tokens
    assert build["plugin_config"]["dtype"] == "float32"
    assert config["draftyard"] == {"lane": "reference", "speculator": block, "kv_cache_tokens": 512, "threads": 0}


def test_the_draft_takes_the_targets_sizes_and_does_not_speculate() -> None:
    target = engine(DRAFT)
    small = checkpoint_config(replace(BASE, layers=1), Precision.FP16, 1, 1)
    draft = draft_engine_config(target, small)
    assert draft["pretrained_config"] == small
    assert draft["build_config"]["max_seq_len"] == target["build_config"]["max_seq_len"]
    assert draft["build_config"]["max_draft_len"] == 0
    assert draft["build_config"]["speculative_decoding_mode"] == 1
    assert draft["build_config"]["plugin_config"]["dtype"] == "float16"
    assert draft["draftyard"]["speculator"] == {"kind": "none", "max_draft_len": 0}
    assert target["build_config"]["max_draft_len"] == 3
