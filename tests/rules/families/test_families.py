"""Config keys in every spelling people's files have come to one network, or to a named problem."""

from collections.abc import Mapping

import pytest
from tests.fakes.tiny_model import config_of

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.nouns.network import Network, Precision, RotaryScaling
from draftyard.rules.families.family import Family, source_tensors
from draftyard.rules.families.known_families import FAMILIES, family_of
from draftyard.rules.quantisation import Fp8Form
from draftyard.rules.trtllm import checkpoint_config

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def network_of(config: Mapping[str, object]) -> Network:
    family = family_of(config)
    assert isinstance(family, Family), family
    resolution = family.resolve(config)
    assert resolution.problems == ()
    assert resolution.network is not None
    return resolution.network


def problems_of(config: Mapping[str, object]) -> str:
    family = family_of(config)
    if isinstance(family, Problem):
        return family.message
    resolution = family.resolve(config)
    assert resolution.network is None
    return "; ".join(problem.message for problem in resolution.problems)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 500000.0, "rope_scaling": {**LLAMA3, "rope_type": "llama3"}},
        {"rope_theta": 500000.0, "rope_scaling": {**LLAMA3, "type": "llama3"}},
        {"rope_theta": 500000.0, "rope_scaling": {**LLAMA3, "type": "llama3", "rope_type": "llama3"}},
        {"rope_theta": None, "rope_parameters": {**LLAMA3, "rope_type": "llama3", "rope_theta": 500000.0}},
        {"rope_theta": 500000, "rope_parameters": {**LLAMA3, "rope_type": "llama3", "rope_theta": 500000.0}},
    ],
)
def test_every_spelling_of_llama3_scaling(changes: Mapping[str, object]) -> None:
    network = network_of(config_of(**changes))
    assert network.rotary_base == 500000.0
    assert network.rotary_scaling == RotaryScaling("llama3", tuple(sorted(LLAMA3.items())))


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {}},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    ],
)
def test_default_means_none(changes: Mapping[str, object]) -> None:
    network = network_of(config_of(**changes))
    assert network.rotary_scaling is None
    assert network.rotary_base == 10000.0


def test_su_is_longrope() -> None:
    lists = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    old = network_of(config_of(rope_scaling={"type": "su", **lists}))
    new = network_of(config_of(rope_scaling={"rope_type": "longrope", **lists}))
    assert old == new
    assert old.rotary_scaling is not None
    assert dict(old.rotary_scaling.values)["long_factor"] == (4.0, 4.0, 4.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": None}, "config.json has no rope_theta, neither at the top nor in rope_parameters"),
        ({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}, "different rotary bases"),
        (
            {"rope_scaling": {"type": "magic", "factor": 2.0}},
            "kind 'magic'; supported: default, dynamic",
        ),
        ({"rope_scaling": {"type": "linear"}}, "of kind linear lacks factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor, high_freq_factor"),
        ({"rope_scaling": {"factor": 8.0}}, "a factor but no rope_type"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 8.0}}, "both linear and yarn"),
        ({"rope_scaling": {"type": "linear", "factor": "8"}}, "rope_scaling.factor is '8', not a number"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 1.0}}},
            "one object per layer type (full_attention, sliding_attention)",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [4.0] * 4}},
            "short_factor has 3 entries, expected 4 (head size 8 / 2)",
        ),
        ({"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4}}, "of kind longrope lacks long_factor"),
        (
            {
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
                "original_max_position_embeddings": 32,
            },
            "original_max_position_embeddings is 32 at the top and 64 in rope_scaling",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor is 0, not a number above 0"),
        ({"rope_scaling": {"type": "yarn", "factor": True}}, "rope_scaling.factor is True, not a number above 0"),
        (
            {"rope_scaling": {**LLAMA3, "rope_type": "llama3", "low_freq_factor": 4.0}},
            "low_freq_factor 4.0 is not below high_freq_factor 4.0",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_attention"),
        ({"head_dim": 25}, "the head size is 25 (hidden_size 32, num_attention_heads 4)"),
        ({"hidden_size": 100, "num_attention_heads": 4}, "the head size is 25 (hidden_size 100"),
        ({"hidden_act": "gelu"}, "another activation than silu"),
        ({"hidden_size": None}, "config.json has no hidden_size"),
        ({"vocab_size": "50"}, "vocab_size is '50', not a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05, not a number above 0"),
        ({"tie_word_embeddings": "yes"}, "neither true nor false"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"num_key_value_heads": [2, 2, 4]}, "num_key_value_heads is a list per layer"),
        ({"hidden_size": 33}, "no head_dim, and hidden_size 33 is no multiple"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported"),
        ({"model_type": None}, "config.json has no model_type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "which needs LlamaForCausalLM"),
    ],
)
def test_contradictions_are_named(changes: Mapping[str, object], message: str) -> None:
    config = {key: value for key, value in {**config_of(), **changes}.items() if value is not None}
    assert message in problems_of(config)


def test_several_problems_come_together() -> None:
    message = problems_of(config_of(hidden_size=None, vocab_size=0, rope_theta=None))
    assert all(part in message for part in ("no hidden_size", "vocab_size is 0", "no rope_theta"))


def test_the_length_before_scaling_may_stand_beside_the_block() -> None:
    lists = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    beside = config_of(rope_scaling={"type": "su", **lists}, original_max_position_embeddings=64)
    network = network_of(beside)
    assert network.rotary_scaling is not None
    assert dict(network.rotary_scaling.values)["original_max_position_embeddings"] == 64
    written = checkpoint_config(network, Precision.FP16, 1, 1)
    assert written["position_embedding_type"] == "long_rope"
    assert written["rotary_scaling"] == {
        "type": "longrope",
        "rope_type": "longrope",
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
    }


@pytest.mark.parametrize(
    ("version", "known"), [("4.30.0.dev0", True), ("4.31.0", True), ("4.33.0", False), ("5", False)]
)
def test_only_the_first_llamas_may_be_silent_about_the_base(version: str, known: bool) -> None:
    """meta-llama/Llama-2-7b-hf: saved when transformers' Llama had one base and no key for it."""
    config = {key: value for key, value in config_of(transformers_version=version).items() if key != "rope_theta"}
    if known:
        assert network_of(config).rotary_base == 10000.0
        assert "10000, the only one then" in FAMILIES["llama"].resolve(config).notes[0]
    else:
        assert "no rope_theta" in problems_of(config)
    assert "no rope_theta" in problems_of({**config, "model_type": "mistral", "architectures": ["MistralForCausalLM"]})


@pytest.mark.parametrize("model_type", ["t5", "phi3", "gemma2", "qwen2_moe", "qwen3_moe", "deepseek_v3", "gpt2"])
def test_a_type_without_a_page_is_refused_with_the_list(model_type: str) -> None:
    """NVIDIA/TensorRT-LLM#575, #1925, #4728: a clean word instead of a shape error deep inside."""
    message = problems_of({**config_of(), "model_type": model_type})
    assert f"model_type {model_type!r} is not supported; supported: llama, mistral, mixtral, qwen2, qwen3" in message


@pytest.mark.parametrize("absent", [{"num_key_value_heads": None}, {"head_dim": None}])
def test_null_equals_absence(absent: Mapping[str, object]) -> None:
    explicit: dict[str, object] = {**config_of(), **absent}
    without = {key: value for key, value in explicit.items() if value is not None}
    assert network_of(explicit) == network_of(without)
    assert network_of(config_of(num_key_value_heads=None)).kv_heads == 4


def test_head_size_is_resolved_for_each_network() -> None:
    target = network_of(config_of("mistral", hidden_size=80, head_dim=32))
    draft = network_of(config_of("mistral", hidden_size=80))
    assert (target.head_size, draft.head_size) == (32, 20)


def test_family_traits() -> None:
    tables = {name: source_tensors(FAMILIES[name].rules(network_of(config_of(name)))) for name in FAMILIES}
    layer = "model.layers.0.self_attn"
    assert f"{layer}.q_proj.bias" not in tables["llama"]
    assert tables["qwen2"][f"{layer}.k_proj.bias"] == (16,)
    assert f"{layer}.o_proj.bias" not in tables["qwen2"]
    assert tables["qwen3"][f"{layer}.q_norm.weight"] == (8,)
    assert f"{layer}.q_proj.bias" not in tables["qwen3"]
    assert network_of(config_of("mistral", sliding_window=64)).sliding_window == 64


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 8.0}, {**LLAMA3, "rope_type": "llama3"}])
def test_every_precision_has_the_same_architecture(model_type: str, scaling: Mapping[str, Json] | None) -> None:
    """NVIDIA/TensorRT-LLM#1676: two routes, two lists of fields, and the quantised one lost the rotary scaling."""
    network = network_of(config_of(model_type, rope_scaling=scaling))
    forms = {precision: None for precision in Precision if precision is not Precision.FP8}
    configs = [checkpoint_config(network, precision, 2, 1) for precision in forms]
    for rest in (Precision.FP16, Precision.BF16):
        configs.append(checkpoint_config(network, Precision.FP8, 2, 1, Fp8Form(rest, True, ("*lm_head",))))
    fields = [{key: value for key, value in one.items() if key not in ("dtype", "quantization")} for one in configs]
    assert all(one == fields[0] for one in fields)
    assert (fields[0]["rotary_scaling"] is None) is (scaling is None)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3"])
def test_the_checkpoint_config_carries_every_number(kind: str) -> None:
    numbers = {"factor": 4.0, "beta_fast": 32, "beta_slow": 1, "attention_factor": 0.7}
    if kind == "llama3":
        numbers = {**LLAMA3}
    network = network_of(config_of(rope_scaling={"type": kind, **numbers}))
    configs: list[Mapping[str, Json]] = [checkpoint_config(network, Precision(name), 1, 1) for name in ("fp16", "bf16")]
    assert configs[0]["rotary_scaling"] == {"type": kind, "rope_type": kind, **numbers}
    assert {key: value for key, value in configs[0].items() if key != "dtype"} == {
        key: value for key, value in configs[1].items() if key != "dtype"
    }
