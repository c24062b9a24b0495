"""Grouped-query attention over the cache, of many sequences in one product where that is cheaper."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftyard.engine.configuration import DecoderShape
from draftyard.engine.key_value_cache import ROUNDED_TO, KeyValueCache
from draftyard.engine.runs import Window

# Windows of more new tokens than this (chunks of prompts) are attended in pieces of so many: what a piece does not see
# is not multiplied, and the scores of one piece stay in the processor's cache.
PIECE = 64
# What one more call costs, in cached positions times (PER_POSITION + new tokens) of one sequence: measured on a CPU.
CALL_COST = 1000
PER_POSITION = 8
# Products in float32 of at least so many rows, summed over at most so many positions, give a row the same bits in any
# company: MKL takes another kernel below, and cuts longer sums where their length says. So a token that is verified
# sees what it would have seen alone.
FEWEST_ROWS = 4
SUMMED_AT_ONCE = 192
HIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class Group:
    """Windows of neighbouring slots, padded to one length and one number of new tokens.

    Cell (slot - first slot) * new + j of the padded grid is new token j of a slot. `rows` and `cells` say which packed
    row is which cell; None when packed rows `begin` to `end` are the cells. `mask` [slots * KV heads, rows, length] is
    additive, with a row for each query of a KV head, new * group of them and at least FEWEST_ROWS. `folded` and `mixed`
    [slots * KV heads, rows, head size] are room for queries and results, `asked` and `given` [slots, new, KV heads,
    group, head size] what of them is used, in the order of cells; all layers use the same room.
    """

    grid: tuple[int, int, int, int, int]
    first_head: int
    last_head: int
    length: int
    begin: int
    end: int
    rows: Tensor | None
    cells: Tensor | None
    mask: Tensor
    folded: Tensor
    asked: Tensor
    mixed: Tensor
    given: Tensor


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
    places = torch.tensor(
        [
            [window.slot for window in windows for _ in window.positions],
            [row for window in windows for row in range(window.start, window.end)],
        ],
        device=device,
    )
    if device.type != "cpu":
        spans = [
            window_span(window, begin, shape, device, dtype) for window, begin in zip(windows, begins, strict=False)
        ]
        return AttentionPlan(places[0], places[1], (), tuple(spans))
    groups: list[Group] = []
    few = [index for index, window in enumerate(windows) if len(window.positions) <= PIECE]
    for chosen in _neighbours(sorted(few, key=lambda index: windows[index].slot), windows):
        parts = [_whole(windows[index], begins[index]) for index in chosen]
        groups.append(_group(parts, shape, dtype))
    for window, begin in zip(windows, begins, strict=False):
        if len(window.positions) > PIECE:
            groups.extend(_group([part], shape, dtype) for part in _pieces(window, begin))
    return AttentionPlan(places[0], places[1], tuple(groups), ())


@dataclass(frozen=True, slots=True)
class _Part:
    """Some new tokens of a window: packed rows from `begin` on, that see the first `length` positions of a slot."""

    slot: int
    begin: int
    count: int
    length: int
    mask: Tensor | None


def _whole(window: Window, begin: int) -> _Part:
    return _Part(window.slot, begin, len(window.positions), window.end, window.mask)


def _pieces(window: Window, begin: int) -> list[_Part]:
    """A long window in pieces; positions that none of a piece's tokens sees are left out at its end."""
    parts = []
    for first in range(0, len(window.positions), PIECE):
        count, length, mask = min(PIECE, len(window.positions) - first), window.end, None
        if window.mask is not None:
            length = int((window.mask[first : first + count] > HIDDEN).any(dim=0).nonzero()[-1]) + 1
            mask = window.mask[first : first + count, :length]
        parts.append(_Part(window.slot, begin + first, count, length, mask))
    return parts


def window_span(window: Window, begin: int, shape: DecoderShape, device: torch.device, dtype: torch.dtype) -> Span:
    """A window attended by itself, its packed rows from `begin` on."""
    mask = None if window.mask is None else window.mask.repeat(shape.group, 1).to(device, dtype)
    return Span(begin, begin + len(window.positions), window.slot, window.end, mask)


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


def _group(parts: Sequence[_Part], shape: DecoderShape, dtype: torch.dtype) -> Group:
    first, last = parts[0].slot, parts[-1].slot + 1
    new = max(part.count for part in parts)
    length = -(-max(part.length for part in parts) // ROUNDED_TO) * ROUNDED_TO
    mask = torch.full((last - first, new, length), HIDDEN, dtype=dtype)
    mask[:, :, 0] = 0.0  # a cell that sees nothing would be no number
    rows: list[int] = []
    cells: list[int] = []
    for part in parts:
        place = part.slot - first
        mask[place, : part.count, : part.length] = 0.0 if part.mask is None else part.mask
        rows.extend(range(part.begin, part.begin + part.count))
        cells.extend(range(place * new, place * new + part.count))
    dense = rows == list(range(rows[0], rows[0] + (last - first) * new))
    return Group(
        (last - first, new, shape.kv_heads, shape.group, shape.head_size),
        first * shape.kv_heads,
        last * shape.kv_heads,
        length,
        rows[0],
        rows[-1] + 1,
        None if dense else torch.tensor(rows),
        None if dense else torch.tensor(cells),
        *_rooms(mask, shape),
    )


def _rooms(mask: Tensor, shape: DecoderShape) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`mask` [slots, new, length] for every query, and the other tensors of a group."""
    slots, new, length = mask.shape
    rows, heads = new * shape.group, slots * shape.kv_heads
    padding = max(FEWEST_ROWS - rows, 0)
    folded = torch.zeros(2, heads, rows + padding, shape.head_size, dtype=mask.dtype)
    used = folded[:, :, :rows].view(2, slots, shape.kv_heads, new, shape.group, shape.head_size).transpose(2, 3)
    repeated = mask[:, :, None].expand(-1, -1, shape.group, -1).reshape(slots, 1, rows, length)
    padded = functional.pad(repeated, (0, 0, 0, padding)).expand(-1, shape.kv_heads, -1, -1)
    # The mask of one slot stays one for all heads.
    return padded[0] if slots == 1 else padded.flatten(0, 1), folded[0], used[0], folded[1], used[1]


def attend(plan: AttentionPlan, shape: DecoderShape, cache: KeyValueCache, layer: int, queries: Tensor) -> Tensor:
    """[new tokens, heads, head size] -> [new tokens, heads * head size]; keys and values of the pass are stored."""
    if len(plan.groups) == 1 and not plan.spans and plan.groups[0].rows is None:
        return _attend_group(plan.groups[0], cache, layer, queries)
    mixed = queries.new_empty(queries.shape[0], shape.heads * shape.head_size)
    for group in plan.groups:
        if group.rows is None or group.cells is None:
            mixed[group.begin : group.end] = _attend_group(group, cache, layer, queries[group.begin : group.end])
        else:
            padded = queries.new_zeros(group.grid[0] * group.grid[1], *queries.shape[1:])
            padded[group.cells] = queries[group.rows]
            mixed[group.rows] = _attend_group(group, cache, layer, padded)[group.cells]
    for span in plan.spans:
        mixed[span.begin : span.end] = _attend_span(span, shape, cache, layer, queries[span.begin : span.end])
    return mixed


def _attend_group(group: Group, cache: KeyValueCache, layer: int, queries: Tensor) -> Tensor:
    """Cells [slots * new, heads, head size] -> [slots * new, heads * head size], in a few calls for all slots."""
    heads = slice(group.first_head, group.last_head)
    keys, values = cache.keys[layer][heads, : group.length], cache.values[layer][heads]
    group.asked.copy_(queries.view(group.grid))
    shares = torch.baddbmm(group.mask, group.folded, keys.transpose(1, 2), alpha=group.grid[-1] ** -0.5).softmax(-1)
    for begin in range(0, group.length, SUMMED_AT_ONCE):
        end = min(begin + SUMMED_AT_ONCE, group.length)
        part, seen = shares[:, :, begin:end], values[:, begin:end]
        if begin == 0:
            torch.bmm(part, seen, out=group.mixed)
        else:
            group.mixed.baddbmm_(part, seen)
    return group.given.reshape(queries.shape[0], -1)


def _attend_span(span: Span, shape: DecoderShape, cache: KeyValueCache, layer: int, queries: Tensor) -> Tensor:
    """Queries that share a KV head are folded into rows, so its keys are read once."""
    count = queries.shape[0]
    heads = slice(span.slot * shape.kv_heads, (span.slot + 1) * shape.kv_heads)
    keys, values = cache.keys[layer][None, heads, : span.length], cache.values[layer][None, heads, : span.length]
    folded = queries.view(count, shape.kv_heads, shape.group, shape.head_size).permute(1, 2, 0, 3)
    folded = folded.reshape(1, shape.kv_heads, shape.group * count, shape.head_size)
    out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=span.mask)
    return out.view(shape.heads, count, shape.head_size).transpose(0, 1).reshape(count, -1)
