"""Attention in groups of sequences against one plain formula, for every way windows can lie."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.test_key_value_cache import SHAPE

from draftyard.engine import attention
from draftyard.engine.attention import AttentionPlan, attend, plan_attention
from draftyard.engine.key_value_cache import KeyValueCache
from draftyard.engine.runs import Run, Window, run_window

POSITIONS, SLOTS = 90, 6


def filled_cache() -> KeyValueCache:
    """Finite numbers everywhere, also behind what windows see."""
    cache = KeyValueCache(SHAPE, SLOTS, POSITIONS, torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(1)
    for part in (*cache.keys, *cache.values):
        part.copy_(torch.randn(part.shape, generator=generator))
    return cache


def expected(window: Window, cache: KeyValueCache, queries: torch.Tensor) -> torch.Tensor:
    """softmax(q k / sqrt(d) + mask) v of one window, query by query and head by head, in float64."""
    slot_heads = slice(window.slot * SHAPE.kv_heads, (window.slot + 1) * SHAPE.kv_heads)
    keys, values = (part[0][slot_heads, : window.end].double() for part in (cache.keys, cache.values))
    rows = []
    for index, query in enumerate(queries.double()):
        seen = torch.zeros(window.end) if window.mask is None else window.mask[index]
        heads = []
        for head, vector in enumerate(query):
            scores = keys[head // SHAPE.group] @ vector / SHAPE.head_size**0.5 + seen
            heads.append(scores.softmax(-1) @ values[head // SHAPE.group])
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def chain(slot: int, start: int, count: int) -> Run:
    return Run(slot, start, (0,) * count, 0)


def tree(slot: int, start: int, parents: list[int]) -> Run:
    return Run(slot, start, (0,) * len(parents), 0, tuple(parents))


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    """One run for some of the slots, in any order: single tokens, chains, trees, chunks."""
    chosen = []
    for slot in draw(st.permutations(range(SLOTS))):
        kind = draw(st.sampled_from(["none", "token", "token", "chain", "tree"]))
        start = draw(st.integers(0, 40))
        if kind == "token":
            chosen.append(chain(slot, start, 1))
        elif kind == "chain":
            chosen.append(chain(slot, start, draw(st.integers(2, 40))))
        elif kind == "tree":
            parents = [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(1, 8)))]
            chosen.append(tree(slot, start, parents))
    return chosen or [chain(0, 0, 1)]


@settings(max_examples=60, deadline=None)
@given(runs(), st.sampled_from([1, 3, 20, 64]))
def test_attention_is_the_formula_however_windows_are_grouped(chosen: list[Run], piece: int) -> None:
    windows = [run_window(run) for run in chosen]
    cache = filled_cache()
    count = sum(len(window.positions) for window in windows)
    queries = torch.randn(count, SHAPE.heads, SHAPE.head_size, generator=torch.Generator().manual_seed(2)) * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "PIECE", piece)
        found = attend(plan_attention(windows, SHAPE, cache, torch.float32), SHAPE, cache, 0, queries)
    begin = 0
    for window in windows:
        end = begin + len(window.positions)
        assert (found[begin:end] - expected(window, cache, queries[begin:end])).abs().max() <= 1e-5
        begin = end


@settings(max_examples=30, deadline=None)
@given(runs())
def test_attention_window_by_window_as_on_a_gpu_is_the_formula_too(chosen: list[Run]) -> None:
    windows, cache = [run_window(run) for run in chosen], filled_cache()
    spans, outcomes, begin = [], [], 0
    queries = torch.randn(sum(len(window.positions) for window in windows), SHAPE.heads, SHAPE.head_size)
    for window in windows:
        spans.append(attention.window_span(window, begin, SHAPE, torch.device("cpu"), torch.float32))
        begin = spans[-1].end
        outcomes.append(expected(window, cache, queries[spans[-1].begin : begin]))
    places = torch.zeros(0, dtype=torch.long)
    found = attend(AttentionPlan(places, places, (), tuple(spans)), SHAPE, cache, 0, queries)
    assert (found - torch.cat(outcomes)).abs().max() <= 1e-5


def test_sequences_of_like_length_share_a_group_and_a_long_one_has_its_own() -> None:
    lengths = (200, 210, 190, 2000, 205)
    windows = [run_window(chain(slot, start, 1)) for slot, start in enumerate(lengths)]
    cache = KeyValueCache(SHAPE, 5, 2048, torch.device("cpu"), torch.float32)
    groups = plan_attention(windows, SHAPE, cache, torch.float32).groups
    assert [(group.first_head, group.last_head) for group in groups] == [(0, 6), (6, 8), (8, 10)]
    assert all(group.rows is None for group in groups)


def test_a_free_slot_between_two_is_bridged_when_that_is_cheaper() -> None:
    windows = [run_window(chain(slot, 30, 1)) for slot in (0, 1, 3)]
    (group,) = plan_attention(windows, SHAPE, filled_cache(), torch.float32).groups
    assert (group.first_head, group.last_head) == (0, 8)
    assert group.cells is not None
    assert group.cells.tolist() == [0, 1, 3]
