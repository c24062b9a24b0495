"""Grouped-query attention over the cache, of many sequences in one product where that is cheaper."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftyard.engine.configuration import DecoderShape
from draftyard.engine.key_value_cache import LINE, KeyValueCache
from draftyard.engine.runs import Window

# Windows of more new tokens than this (chunks of prompts) are attended one by one, without keeping all scores.
MOST_GROUPED = 64
# What one more call costs, in cached positions times (PER_POSITION + new tokens) of one sequence: measured on a CPU.
CALL_COST = 1000
PER_POSITION = 8
HIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class Group:
    """Windows of neighbouring slots, padded to one length and one number of new tokens.

    Cell (slot - first_slot) * new + j of the padded grid is new token j of a slot. `rows` and `cells` say which packed
    row is which cell; None when packed rows `begin` to `end` are the cells. `mask` [slots * KV heads, new * group,
    length] is additive.
    """

    first_slot: int
    last_slot: int
    length: int
    new: int
    begin: int
    end: int
    rows: Tensor | None
    cells: Tensor | None
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """The packed rows `begin` to `end` of one window, and its mask [group * new, length], None when all is seen."""

    begin: int
    end: int
    slot: int
    length: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How all layers of one pass attend; `slots` and `positions` [new tokens] say where keys and values are stored."""

    slots: Tensor
    positions: Tensor
    groups: tuple[Group, ...]
    spans: tuple[Span, ...]


def plan_attention(
    windows: Sequence[Window], shape: DecoderShape, cache: KeyValueCache, dtype: torch.dtype
) -> AttentionPlan:
    """Decide which windows are attended together; masks and indices are made once for all layers.

    On a GPU every window is a span: what fuses scores and softmax there also keeps scores of 16 bits exact enough.
    """
    device = cache.keys[0].device
    begins = [0]
    for window in windows:
        begins.append(begins[-1] + len(window.positions))
    few = [len(window.positions) <= MOST_GROUPED and device.type == "cpu" for window in windows]
    order = sorted((index for index, small in enumerate(few) if small), key=lambda index: windows[index].slot)
    places = torch.tensor(
        [
            [window.slot for window in windows for _ in window.positions],
            [row for window in windows for row in range(window.start, window.end)],
        ],
        device=device,
    )
    groups = [
        _group([windows[index] for index in chosen], [begins[index] for index in chosen], shape, cache.room, dtype)
        for chosen in _neighbours(order, windows)
    ]
    spans = []
    for index, window in enumerate(windows):
        if not few[index]:
            mask = None if window.mask is None else window.mask.repeat(shape.group, 1).to(device, dtype)
            spans.append(Span(begins[index], begins[index + 1], window.slot, window.end, mask))
    return AttentionPlan(places[0], places[1], tuple(groups), tuple(spans))


def _neighbours(order: Sequence[int], windows: Sequence[Window]) -> list[list[int]]:
    """Cut windows in order of slots into groups: the next one joins while that costs less than a call of its own."""
    groups: list[list[int]] = []
    for index in order:
        if groups and windows[groups[-1][-1]].slot != windows[index].slot:
            together = _cost([windows[one] for one in (*groups[-1], index)])
            apart = _cost([windows[one] for one in groups[-1]]) + CALL_COST + _cost([windows[index]])
            if together <= apart:
                groups[-1].append(index)
                continue
        groups.append([index])
    return groups


def _cost(windows: Sequence[Window]) -> int:
    slots = windows[-1].slot - windows[0].slot + 1
    new = max(len(window.positions) for window in windows)
    return slots * max(window.end for window in windows) * (PER_POSITION + new)


def _group(
    windows: Sequence[Window], begins: Sequence[int], shape: DecoderShape, room: int, dtype: torch.dtype
) -> Group:
    first, last = windows[0].slot, windows[-1].slot + 1
    new = max(len(window.positions) for window in windows)
    length = min(-(-max(window.end for window in windows) // LINE) * LINE, room)
    mask = torch.full((last - first, new, length), HIDDEN, dtype=dtype)
    mask[:, :, 0] = 0.0  # a cell that sees nothing would be no number
    rows: list[int] = []
    cells: list[int] = []
    for window, begin in zip(windows, begins, strict=True):
        count, place = len(window.positions), window.slot - first
        mask[place, :count, : window.end] = 0.0 if window.mask is None else window.mask
        rows.extend(range(begin, begin + count))
        cells.extend(range(place * new, place * new + count))
    folded = mask[:, None, :, None].expand(-1, shape.kv_heads, -1, shape.group, -1)
    dense = rows == list(range(rows[0], rows[0] + (last - first) * new))
    return Group(
        first_slot=first,
        last_slot=last,
        length=length,
        new=new,
        begin=rows[0],
        end=rows[-1] + 1,
        rows=None if dense else torch.tensor(rows),
        cells=None if dense else torch.tensor(cells),
        mask=folded.reshape(-1, new * shape.group, length),
    )


def attend(plan: AttentionPlan, shape: DecoderShape, cache: KeyValueCache, layer: int, queries: Tensor) -> Tensor:
    """[new tokens, heads, head size] -> [new tokens, heads * head size]; keys and values of the pass are stored."""
    keys, values = cache.keys[layer], cache.values[layer]
    if len(plan.groups) == 1 and not plan.spans and plan.groups[0].rows is None:
        return _attend_group(plan.groups[0], shape, keys, values, queries)
    mixed = queries.new_empty(queries.shape[0], shape.heads * shape.head_size)
    for group in plan.groups:
        if group.rows is None or group.cells is None:
            mixed[group.begin : group.end] = _attend_group(group, shape, keys, values, queries[group.begin : group.end])
        else:
            padded = queries.new_zeros((group.last_slot - group.first_slot) * group.new, *queries.shape[1:])
            padded[group.cells] = queries[group.rows]
            mixed[group.rows] = _attend_group(group, shape, keys, values, padded)[group.cells]
    for span in plan.spans:
        mixed[span.begin : span.end] = _attend_span(span, shape, keys, values, queries[span.begin : span.end])
    return mixed


def _attend_group(group: Group, shape: DecoderShape, keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
    """Cells [slots * new, heads, head size] -> [slots * new, heads * head size], in three calls for all slots."""
    grid = (group.last_slot - group.first_slot, group.new, shape.kv_heads, shape.group, shape.head_size)
    folded = queries.reshape(grid).transpose(1, 2).reshape(-1, group.new * shape.group, shape.head_size)
    seen_keys = keys[group.first_slot : group.last_slot].flatten(0, 1)[:, :, : group.length]
    seen_values = values[group.first_slot : group.last_slot].flatten(0, 1)[:, : group.length]
    scores = torch.baddbmm(group.mask, folded, seen_keys, alpha=shape.head_size**-0.5)
    mixed = torch.bmm(scores.softmax(-1), seen_values)
    unfolded = mixed.view(grid[0], shape.kv_heads, group.new, shape.group, shape.head_size).transpose(1, 2)
    return unfolded.reshape(-1, shape.heads * shape.head_size)


def _attend_span(span: Span, shape: DecoderShape, keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
    """Queries that share a KV head are folded into rows, so its keys are read once."""
    count = queries.shape[0]
    seen_keys = keys[span.slot, :, :, : span.length].transpose(1, 2).contiguous()
    folded = queries.view(count, shape.kv_heads, shape.group, shape.head_size).permute(1, 2, 0, 3)
    folded = folded.reshape(1, shape.kv_heads, shape.group * count, shape.head_size)
    out = functional.scaled_dot_product_attention(
        folded, seen_keys[None], values[None, span.slot, :, : span.length], attn_mask=span.mask
    )
    return out.view(shape.heads, count, shape.head_size).transpose(0, 1).reshape(count, -1)
