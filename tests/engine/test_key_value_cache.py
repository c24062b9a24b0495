"""The cache: what is stored is found again, accepted paths and prefixes move, and nothing else does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftyard.engine.configuration import decoder_shape
from draftyard.engine.key_value_cache import KeyValueCache

POSITIONS = 20
SHAPE = decoder_shape(
    {
        "dtype": "float32",
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 8,
        "norm_epsilon": 1e-5,
        "rotary_base": 1e4,
        "max_position_embeddings": 32,
        "hidden_act": "silu",
        "mapping": {"tp_size": 1, "pp_size": 1},
    }
)


def numbered(slots: int = 2) -> KeyValueCache:
    """A cache in which every number is another one."""
    cache = KeyValueCache(SHAPE, slots, POSITIONS, torch.device("cpu"), torch.float32)
    for layer in range(SHAPE.layers):
        for sign, part in ((1, cache.keys[layer]), (-1, cache.values[layer])):
            part.copy_(sign * (torch.arange(part.numel()).view_as(part) + 10000 * layer))
    return cache


def token(cache: KeyValueCache, layer: int, slot: int, position: int) -> torch.Tensor:
    """[2, KV heads, head size]: key and value of one token."""
    heads = slice(slot * SHAPE.kv_heads, (slot + 1) * SHAPE.kv_heads)
    return torch.stack((cache.keys[layer][heads, position], cache.values[layer][heads, position]))


def tokens(cache: KeyValueCache) -> dict[tuple[int, int, int], torch.Tensor]:
    """Every token of a cache by layer, slot and position."""
    return {
        (layer, slot, position): token(cache, layer, slot, position).clone()
        for layer in range(SHAPE.layers)
        for slot in range(len(cache.keys[0]) // SHAPE.kv_heads)
        for position in range(POSITIONS)
    }


@given(st.sets(st.integers(0, 12)), st.integers(0, 1), st.integers(0, 3))
def test_keeping_moves_rows_of_its_slot_alone_also_where_they_overlap(kept: set[int], slot: int, start: int) -> None:
    cache = numbered()
    before = tokens(cache)
    cache.keep(slot, start, sorted(kept))
    moved = {start + target: start + source for target, source in enumerate(sorted(kept))}
    for (layer, place, position), value in tokens(cache).items():
        source = moved.get(position, position) if place == slot else position
        assert torch.equal(value, before[layer, place, source])


@pytest.mark.parametrize("kept", [(1, 0), (2, 2), (-1, 0)])
def test_a_path_that_does_not_ascend_is_refused(kept: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        numbered().keep(0, 0, kept)


def test_a_prefix_is_copied_and_nothing_behind_it() -> None:
    cache = numbered(3)
    before = tokens(cache)
    cache.copy(2, 0, 7)
    for (layer, slot, position), value in tokens(cache).items():
        assert torch.equal(value, before[layer, 2 if slot == 0 and position < 7 else slot, position])


def test_clearing_empties_the_first_positions_of_one_slot() -> None:
    cache = numbered()
    before = tokens(cache)
    cache.clear(1, 6)
    for (layer, slot, position), value in tokens(cache).items():
        cleared = slot == 1 and position < 6
        assert torch.equal(value, torch.zeros(2, 2, 2) if cleared else before[layer, slot, position])


def test_tokens_are_stored_each_in_its_place() -> None:
    cache = numbered()
    before = tokens(cache)
    pairs = torch.randn(3, 2, 2, 2)
    places = [(1, 4), (0, 19), (1, 5)]
    cache.store(1, torch.tensor([slot for slot, _ in places]), torch.tensor([row for _, row in places]), pairs)
    for (layer, slot, position), value in tokens(cache).items():
        if layer == 1 and (slot, position) in places:
            assert torch.equal(value, pairs[places.index((slot, position))])
        else:
            assert torch.equal(value, before[layer, slot, position])
