"""Cutting and putting together are inverse for every allowed cut, and what cannot be cut is refused with numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.nouns.network import MixtureOfExperts, Network
from draftyard.rules.families.family import Part, Place, Rule, Split
from draftyard.rules.families.known_families import FAMILIES
from draftyard.rules.shards import (
    Mapping2D,
    allowed_tp_sizes,
    checkpoint_name,
    holds,
    padded_vocabulary,
    shard,
    sharding_problems,
    stage_layers,
    unshard,
)

BASE = Network(
    family="llama",
    architecture="LlamaForCausalLM",
    hidden_size=16,
    intermediate_size=16,
    layers=3,
    heads=4,
    kv_heads=2,
    head_size=4,
    vocab_size=9,
    max_position_embeddings=64,
    norm_epsilon=1e-5,
    rotary_base=1e4,
    hidden_act="silu",
    tied_head=False,
)


@st.composite
def networks(draw: st.DrawFn) -> tuple[Network, int]:
    tp_size = draw(st.sampled_from([1, 2, 4]))
    kv_heads = draw(
        st.sampled_from([size for size in (1, 2, 3, 4, 6, 8) if size % tp_size == 0 or tp_size % size == 0])
    )
    heads = kv_heads * tp_size * draw(st.integers(1, 2))
    network = replace(
        BASE,
        heads=heads,
        kv_heads=kv_heads,
        head_size=draw(st.sampled_from([2, 3, 4])),
        hidden_size=draw(st.integers(3, 9)),
        intermediate_size=tp_size * draw(st.integers(1, 4)),
        vocab_size=draw(st.integers(tp_size, 13)),
        qkv_bias=True,
        dense_bias=True,
        mlp_bias=True,
        qk_norm=draw(st.booleans()),
        layers=1,
    )
    return network, tp_size


@settings(max_examples=40, deadline=None)
@given(networks(), st.integers(0, 2**31))
def test_unshard_is_the_inverse_of_shard(drawn: tuple[Network, int], seed: int) -> None:
    network, tp_size = drawn
    assert sharding_problems(network, tp_size, 1) == []
    generator = np.random.default_rng(seed)
    for rule in FAMILIES["llama"].rules(network):
        parts = [generator.standard_normal(part.shape, dtype=np.float32) for part in rule.parts]
        pieces = [shard(rule, parts, network, tp_size, rank) for rank in range(tp_size)]
        assert len({piece.shape for piece in pieces}) == 1
        for part, whole in zip(parts, unshard(rule, pieces, network), strict=True):
            np.testing.assert_array_equal(whole, part)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 16))
def test_stages_cover_the_layers_once_as_tensor_split_does(layers: int, stages: int) -> None:
    by_numpy = [list(part) for part in np.array_split(np.arange(layers), stages)]
    assert [list(stage_layers(layers, stages, stage)) for stage in range(stages)] == by_numpy


@pytest.mark.parametrize(("vocabulary", "tp_size", "padded"), [(528, 1, 528), (49152, 4, 49152), (32101, 4, 32104)])
def test_padded_vocabulary(vocabulary: int, tp_size: int, padded: int) -> None:
    assert padded_vocabulary(vocabulary, tp_size) == padded


def test_padding_rows_are_zeros_even_where_a_rank_has_nothing_else() -> None:
    rule = Rule("lm_head.weight", (Part("h", (5, 2)),), Split.VOCABULARY, Place.LAST)
    whole = np.ones((5, 2), np.float32)
    pieces = [shard(rule, [whole], BASE, 4, rank) for rank in range(4)]
    assert [piece.sum() for piece in pieces] == [4, 4, 2, 0]
    assert {piece.shape for piece in pieces} == {(2, 2)}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp_size", "end"),
    [
        (28, 4, 8, "heads; allowed: 1, 2, 4, 28"),
        (28, 4, 7, "KV heads; allowed: 1, 2, 4, 28"),
        (28, 4, 14, "KV heads; allowed: 1, 2, 4, 28"),
        (12, 6, 4, "KV heads; allowed: 1, 2, 3, 6, 12"),
        (14, 2, 4, "heads; allowed: 1, 2, 14"),
    ],
)
def test_a_cut_through_a_head_is_refused_with_the_allowed_sizes(
    heads: int, kv_heads: int, tp_size: int, end: str
) -> None:
    network = replace(BASE, heads=heads, kv_heads=kv_heads, intermediate_size=28 * 12)
    (problem,) = sharding_problems(network, tp_size, 1)
    assert f"{heads} heads, {kv_heads} KV heads" in problem.message
    assert problem.message.endswith(f"it would cut through {end}")


def test_few_kv_heads_are_repeated() -> None:
    network = replace(BASE, heads=8, kv_heads=4, intermediate_size=16)
    assert sharding_problems(network, 8, 1) == []
    assert allowed_tp_sizes(network) == (1, 2, 4, 8)


def test_feed_forward_rows_and_layers_must_suffice() -> None:
    messages = [problem.message for problem in sharding_problems(replace(BASE, intermediate_size=15), 2, 4, "draft")]
    assert "does not fit the draft: 4 heads, 2 KV heads, 15 feed-forward rows; it would cut through " in messages[0]
    assert messages[0].endswith("feed-forward rows; allowed: 1")
    assert "pp_size 4 does not fit the draft: it has 3 layers" in messages[1]
    sparse = replace(BASE, experts=MixtureOfExperts(4, 2, 6, True))
    assert allowed_tp_sizes(sparse) == (1, 2)
    (problem,) = sharding_problems(replace(sparse, heads=8, kv_heads=4), 4, 1)
    assert "6 feed-forward rows of each expert; it would cut through feed-forward rows" in problem.message


def test_every_tensor_lies_on_exactly_one_stage_and_layers_count_anew() -> None:
    mapping = Mapping2D(1, 2)
    rules = FAMILIES["llama"].rules(BASE)
    for rule in rules:
        assert sum(holds(rule, BASE, mapping, stage) for stage in range(2)) == 1
    norm = next(rule for rule in rules if rule.layer == 2 and rule.name == "input_layernorm.weight")
    assert holds(norm, BASE, mapping, 1)
    assert checkpoint_name(norm, BASE, 2, 1) == "transformer.layers.0.input_layernorm.weight"
    assert mapping.rank(1, 0) == 1


def test_stacked_experts_keep_up_before_gate() -> None:
    network = replace(BASE, experts=MixtureOfExperts(2, 1, 4, True))
    up, gate = np.full((4, 3), 1.0), np.full((4, 3), 2.0)
    names = tuple(Part(str(index), (4, 3)) for index in range(4))
    stacked = shard(Rule("mlp.fc.weight", names, Split.EXPERTS_UP, Place.LAYER, 0), [up, gate] * 2, network, 2, 1)
    assert stacked.shape == (2, 4, 3)
    np.testing.assert_array_equal(stacked[1, :, 0], [1, 1, 2, 2])
