"""What FP8 says in config.json and which tensors it promises on which rank."""

import fnmatch
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import MixtureOfExperts, Network, Precision
from draftyard.nouns.quantization_block import quantization_block
from draftyard.nouns.recipe import EXCLUDED_MODULES, Quantisation
from draftyard.nouns.speculator_source import SpeculatorNetwork
from draftyard.nouns.tensor import TensorType
from draftyard.rules.quantisation import (
    Fp8Form,
    _pattern,
    excluded_modules,
    form_of,
    form_problems,
    fp8_form,
    has_fp8_cache,
    is_quantised,
    with_scales,
)
from draftyard.rules.trtllm_heads import medusa_config

NETWORK = Network(
    family="llama",
    architecture="LlamaForCausalLM",
    hidden_size=32,
    intermediate_size=48,
    layers=3,
    heads=4,
    kv_heads=2,
    head_size=8,
    vocab_size=50,
    max_position_embeddings=128,
    norm_epsilon=1e-5,
    rotary_base=10000.0,
    hidden_act="silu",
    tied_head=False,
)


def block(excluded: tuple[str, ...] | None, kv_cache: bool = False) -> dict[str, object]:
    return {"quantization": Fp8Form(Precision.FP16, kv_cache, excluded).block()}


def test_absent_null_and_empty_exclude_lists_are_three_cases() -> None:
    """Row 103: an empty list excludes nothing; only absent and null fall back to the default."""
    written, null, empty = (
        Quantisation.model_validate(given).exclude_modules
        for given in ({}, {"exclude_modules": None}, {"exclude_modules": []})
    )
    assert (written, null, empty) == (EXCLUDED_MODULES, None, ())
    blocks = [block(excluded)["quantization"]["exclude_modules"] for excluded in (written, null, empty)]
    assert blocks == [list(EXCLUDED_MODULES), None, []]
    heads = [is_quantised(block(excluded), "lm_head") for excluded in (written, null, empty)]
    assert heads == [False, False, True]
    assert excluded_modules({"quantization": {"quant_algo": "FP8"}}) == EXCLUDED_MODULES


@given(
    st.text(alphabet="ab.*?[]!-", max_size=8),
    st.lists(st.text(alphabet="ab.[-!", max_size=6), min_size=1, max_size=4),
)
def test_patterns_match_as_the_shell_does(pattern: str, names: list[str]) -> None:
    try:
        ours = re.compile(_pattern(pattern))
    except re.error:
        return  # an impossible range such as [b-a], which fnmatch takes for nothing
    plain = "[" not in pattern
    for name in names:
        if plain:
            assert bool(ours.fullmatch(name)) == fnmatch.fnmatchcase(name, pattern)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*lm_head", "lm_head", True),
        ("*lm_head", "eagle_nets.0.lm_head", True),
        ("*router", "transformer.layers.0.mlp.router", True),
        ("transformer.layers.[01].*", "transformer.layers.1.mlp.fc", True),
        ("transformer.layers.[!01].*", "transformer.layers.1.mlp.fc", False),
        ("transformer.layers.?.mlp.fc", "transformer.layers.10.mlp.fc", False),
        ("LM_HEAD", "lm_head", False),
    ],
)
def test_one_pattern(pattern: str, name: str, matches: bool) -> None:
    assert bool(re.fullmatch(_pattern(pattern), name)) is matches is fnmatch.fnmatchcase(name, pattern)


def test_scales_stand_beside_the_weights_they_belong_to() -> None:
    plain = {
        "transformer.layers.0.attention.qkv.weight": (TensorType.F16, (64, 32)),
        "transformer.layers.0.attention.qkv.bias": (TensorType.F16, (64,)),
        "transformer.layers.0.mlp.router.weight": (TensorType.F32, (4, 32)),
        "transformer.layers.0.mlp.fc.weight": (TensorType.F16, (4, 96, 32)),
        "transformer.layers.0.input_layernorm.weight": (TensorType.F16, (32,)),
        "lm_head.weight": (TensorType.F16, (50, 32)),
        "medusa_heads.0.lm_head.weight": (TensorType.F16, (50, 32)),
    }
    one = (TensorType.F32, (1,))
    assert with_scales(block(EXCLUDED_MODULES, kv_cache=True), plain) == {
        **plain,
        "transformer.layers.0.attention.qkv.weight": (TensorType.F8_E4M3, (64, 32)),
        "transformer.layers.0.attention.qkv.weights_scaling_factor": one,
        "transformer.layers.0.attention.qkv.activation_scaling_factor": one,
        "transformer.layers.0.attention.kv_cache_scaling_factor": one,
        "transformer.layers.0.mlp.fc.weight": (TensorType.F8_E4M3, (4, 96, 32)),
        "transformer.layers.0.mlp.fc.weights_scaling_factor": (TensorType.F32, (4, 1)),
        "transformer.layers.0.mlp.fc.activation_scaling_factor": one,
    }
    assert with_scales({"quantization": {"quant_algo": None, "kv_cache_quant_algo": None}}, plain) == plain


def test_a_tied_head_cannot_be_quantised() -> None:
    """Row 113."""
    tied = replace(NETWORK, tied_head=True)
    problems = form_problems(tied, Quantisation(exclude_modules=()), "target")
    assert ["tied" in problem.message for problem in problems] == [True]
    assert form_problems(tied, Quantisation(), "target") == []
    assert form_problems(tied, Quantisation(exclude_modules=None), "target") == []
    assert form_problems(NETWORK, Quantisation(exclude_modules=()), "target") == []


def test_a_router_cannot_be_quantised_and_something_must_be() -> None:
    sparse = replace(NETWORK, experts=MixtureOfExperts(4, 2, 48, True))
    assert "router" in form_problems(sparse, Quantisation(exclude_modules=("*lm_head",)), "target")[0].message
    assert "nothing" in form_problems(NETWORK, Quantisation(exclude_modules=("*",)), "target")[0].message


def test_an_unknown_schema_is_refused_and_its_writer_named() -> None:
    """Row 112: field names of another version."""
    old = {"version": "0.11.0", "quantization": {"quant_algo": "FP8", "sq_use_plugin": True}}
    with pytest.raises(Failure, match=r"sq_use_plugin.*0\.11\.0"):
        quantization_block(old)
    foreign = {"producer": {"name": "another", "version": "3"}, "quantization": {"scheme": "w8a8"}}
    with pytest.raises(Failure, match="another 3"):
        quantization_block(foreign)


def test_what_stays_in_16_bit_follows_the_source() -> None:
    forms = [fp8_form(kind, Quantisation()).rest for kind in (TensorType.BF16, TensorType.F16, TensorType.F32)]
    assert forms == [Precision.BF16, Precision.FP16, Precision.FP16]


@pytest.mark.parametrize("excluded", [EXCLUDED_MODULES, None, (), ("*layers.1.*", "lm_head")])
@pytest.mark.parametrize("kv_cache", [True, False])
def test_a_form_comes_back_from_its_config(excluded: tuple[str, ...] | None, kv_cache: bool) -> None:
    """Row 103: null stays null and empty stays empty on the way through a file."""
    form = Fp8Form(Precision.BF16, kv_cache, excluded)
    config = json.loads(json.dumps({"quantization": form.block()}))
    assert form_of(config, Precision.BF16) == form
    assert has_fp8_cache(config) is kv_cache
    assert form_of({"quantization": {"quant_algo": None}}, Precision.BF16) is None


def test_heads_stay_in_16_bit_whatever_is_excluded() -> None:
    base = {**block(None), "architecture": "LlamaForCausalLM"}
    network = SpeculatorNetwork(SpeculatorKind.MEDUSA, 32, 50, 50, heads=2, head_layers=1)
    excluded = medusa_config(base, "llama", network, 2, 4)["quantization"]["exclude_modules"]
    assert excluded == [*EXCLUDED_MODULES, "*medusa_heads*"]
