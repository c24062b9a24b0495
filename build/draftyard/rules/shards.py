"""Cuts tensors for tensor and pipeline parallel ranks, and puts them together again; pure on shapes and arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from draftyard.nouns.errors import Problem
from draftyard.nouns.network import Network
from draftyard.rules.families.family import Part, Place, Rule, Split

if TYPE_CHECKING:
    # Plans of recipes need no arrays; importing them would take longer than the plan.
    import numpy as np
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.generic]"


@dataclass(frozen=True, slots=True)
class Mapping2D:
    """How many ranks share a layer (`tp_size`) and how many stages share the layers (`pp_size`)."""

    tp_size: int = 1
    pp_size: int = 1

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.tp_size * self.pp_size

    def rank(self, pp_rank: int, tp_rank: int) -> int:
        """Global rank: tensor parallel ranks of one stage follow one another."""
        return pp_rank * self.tp_size + tp_rank


def padded_vocabulary(vocabulary: int, tp_size: int) -> int:
    """Rows of the head over all ranks: the vocabulary rounded up to a multiple of `tp_size`.

    As `pad_vocab_size` of TensorRT-LLM 1.2.1 does; the rows beyond the vocabulary are zeros.
    """
    return -(-vocabulary // tp_size) * tp_size


def stage_layers(layers: int, pp_size: int, pp_rank: int) -> range:
    """Global indices of the layers of one pipeline stage: even shares, the first stages take the remainder.

    The rule of `torch.tensor_split(arange(layers), pp_size)`, which TensorRT-LLM's mapping uses.
    """
    share, remainder = divmod(layers, pp_size)
    begin = pp_rank * share + min(pp_rank, remainder)
    return range(begin, begin + share + (1 if pp_rank < remainder else 0))


def allowed_tp_sizes(network: Network, largest: int = 64) -> tuple[int, ...]:
    """Tensor parallel sizes up to `largest` that this network can be cut for."""
    return tuple(size for size in range(1, largest + 1) if _tp_fits(network, size))


def sharding_problems(network: Network, tp_size: int, pp_size: int, role: str = "target") -> list[Problem]:
    """Why the network cannot be cut so; empty when it can.

    Query heads must divide; KV heads are split when tp divides them, repeated when they divide tp; the feed-forward
    rows must divide; no stage may be without a layer.
    """
    problems = []
    if not _tp_fits(network, tp_size):
        allowed = ", ".join(str(size) for size in allowed_tp_sizes(network))
        problems.append(
            Problem(
                f"tp_size {tp_size} does not fit the {role}: {network.heads} heads, {network.kv_heads} KV heads, "
                f"{_feed_forward_rows(network)} feed-forward rows{' of each expert' if network.experts else ''}; it "
                f"would cut through {' and '.join(_cut_through(network, tp_size))}; allowed: {allowed}",
                f"set tp_size of the {role} to one of {allowed}",
            )
        )
    if pp_size > network.layers:
        problems.append(
            Problem(
                f"pp_size {pp_size} does not fit the {role}: it has {network.layers} layers",
                f"set pp_size to {network.layers} or less",
            )
        )
    return problems


def kv_heads_per_rank(kv_heads: int, tp_size: int) -> int:
    """Key-value heads one rank holds: a share, or one (repeated on tp / kv_heads ranks)."""
    return max(1, kv_heads // tp_size)


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows and columns of one source tensor that lie together in a rank's piece, from its row `at` on.

    Tensors count as matrices: a vector has one column, stacked experts lie one below the other.
    """

    part: int
    rows: range
    columns: range
    at: int


def placements(rule: Rule, network: Network, tp_size: int, tp_rank: int) -> tuple[Placement, ...]:
    """What of a rule's source tensors `tp_rank` holds, part by part, one below the other.

    Rows of the piece behind the last one are zeros (the padding of a vocabulary).
    """
    found: list[Placement] = []
    at = 0
    for index, part in enumerate(rule.parts):
        rows, columns = _held(rule.split, index, part, network, tp_size, tp_rank)
        found.append(Placement(index, rows, columns, at))
        at += len(rows)
    return tuple(found)


def piece_shape(rule: Rule, network: Network, tp_size: int) -> tuple[int, ...]:
    """Shape of the piece of every rank of a rule that has parts."""
    first, *_ = placed = placements(rule, network, tp_size, 0)
    rows = sum(len(one.rows) for one in placed)
    if rule.split is Split.VOCABULARY:
        rows = padded_vocabulary(rule.parts[0].shape[0], tp_size) // tp_size
    if rule.split in (Split.EXPERTS_UP, Split.EXPERTS_DOWN):
        experts = len(rule.parts) // (2 if rule.split is Split.EXPERTS_UP else 1)
        return (experts, rows // experts, len(first.columns))
    return (rows,) if len(rule.parts[0].shape) == 1 else (rows, len(first.columns))


def shard(rule: Rule, parts: Sequence[Array], network: Network, tp_size: int, tp_rank: int) -> Array:
    """The piece of one checkpoint tensor that `tp_rank` holds, made of its source tensors.

    `parts` are the arrays of `rule.parts`, whole, of one element type.
    """
    import numpy as np

    piece = np.zeros(piece_shape(rule, network, tp_size), dtype=parts[0].dtype)
    width = piece.shape[-1] if piece.ndim > 1 else 1
    matrix = piece.reshape(-1, width)
    for one in placements(rule, network, tp_size, tp_rank):
        whole = parts[one.part].reshape(parts[one.part].shape[0], -1)
        rows, columns = one.rows, one.columns
        matrix[one.at : one.at + len(rows)] = whole[rows.start : rows.stop, columns.start : columns.stop]
    return piece


def unshard(rule: Rule, pieces: Sequence[Array], network: Network) -> list[Array]:
    """The source tensors of a rule, put together from the pieces of all tensor parallel ranks, in rank order.

    The inverse of `shard`; padding and repeated KV heads are dropped.
    """
    import numpy as np

    if rule.split is Split.QKV:
        return _split_qkv(pieces, network)
    if rule.split is Split.ROWS:
        return [np.concatenate(pieces, axis=0)]
    if rule.split is Split.COLUMNS:
        return [np.concatenate(pieces, axis=1)]
    if rule.split is Split.VOCABULARY:
        return [np.concatenate(pieces, axis=0)[: network.vocab_size]]
    if rule.split in (Split.EXPERTS_UP, Split.EXPERTS_DOWN):
        return _unstacked_experts(rule.split, pieces)
    return [pieces[0]]


def holds(rule: Rule, network: Network, mapping: Mapping2D, pp_rank: int) -> bool:
    """True when the stage `pp_rank` holds the tensor of this rule; an omitted tied head is held nowhere."""
    if omitted(rule, network, mapping):
        return False
    if rule.place is Place.EVERY:
        return True
    if rule.place is Place.FIRST:
        return pp_rank == 0
    if rule.place is Place.LAST:
        return pp_rank == mapping.pp_size - 1
    return rule.layer is not None and rule.layer in stage_layers(network.layers, mapping.pp_size, pp_rank)


def omitted(rule: Rule, network: Network, mapping: Mapping2D) -> bool:
    """True for a tied head on a single rank: TensorRT-LLM then takes the embedding; otherwise it is written out."""
    return rule.split is Split.VOCABULARY and network.tied_head and mapping.world_size == 1


def checkpoint_name(rule: Rule, network: Network, pp_size: int, pp_rank: int) -> str:
    """Name of the tensor in the file of a stage: layers are counted anew from 0 on every stage."""
    if rule.layer is None:
        return rule.name
    local = rule.layer - stage_layers(network.layers, pp_size, pp_rank).start
    return f"transformer.layers.{local}.{rule.name}"


def _tp_fits(network: Network, tp_size: int) -> bool:
    return not _cut_through(network, tp_size)


def _cut_through(network: Network, tp_size: int) -> list[str]:
    """What ranks would share unevenly."""
    uneven = {
        "heads": bool(network.heads % tp_size),
        "KV heads": bool(network.kv_heads % tp_size and tp_size % network.kv_heads),
        "feed-forward rows": bool(_feed_forward_rows(network) % tp_size),
    }
    return [what for what, bad in uneven.items() if bad]


def _feed_forward_rows(network: Network) -> int:
    return network.experts.intermediate_size if network.experts else network.intermediate_size


def _held(split: Split, index: int, part: Part, network: Network, tp_size: int, tp_rank: int) -> tuple[range, range]:
    """Rows and columns of the part with this index that a rank holds."""
    rows, columns = range(part.shape[0]), range(part.shape[1] if len(part.shape) > 1 else 1)
    if split in (Split.ROWS, Split.EXPERTS_UP) or (split is Split.QKV and index == 0):
        return _share(rows, tp_size, tp_rank), columns
    if split is Split.QKV:
        return _kv_share(rows, network, tp_size, tp_rank), columns
    if split in (Split.COLUMNS, Split.EXPERTS_DOWN):
        return rows, _share(columns, tp_size, tp_rank)
    if split is Split.VOCABULARY:
        share = padded_vocabulary(len(rows), tp_size) // tp_size
        return rows[tp_rank * share : (tp_rank + 1) * share], columns
    return rows, columns


def _share(whole: range, count: int, index: int) -> range:
    size = len(whole) // count
    return whole[index * size : (index + 1) * size]


def _kv_share(rows: range, network: Network, tp_size: int, tp_rank: int) -> range:
    """Rows of K or V for one rank: with fewer heads than ranks, each head serves tp / kv_heads neighbouring ranks."""
    if network.kv_heads >= tp_size:
        return _share(rows, tp_size, tp_rank)
    return _share(rows, network.kv_heads, tp_rank * network.kv_heads // tp_size)


def _split_qkv(pieces: Sequence[Array], network: Network) -> list[Array]:
    import numpy as np

    tp_size = len(pieces)
    query_rows = network.heads // tp_size * network.head_size
    kv_rows = kv_heads_per_rank(network.kv_heads, tp_size) * network.head_size
    repeats = max(1, tp_size // network.kv_heads)
    queries = [piece[:query_rows] for piece in pieces]
    keys = [piece[query_rows : query_rows + kv_rows] for piece in pieces[::repeats]]
    values = [piece[query_rows + kv_rows :] for piece in pieces[::repeats]]
    return [np.concatenate(group, axis=0) for group in (queries, keys, values)]


def _unstacked_experts(split: Split, pieces: Sequence[Array]) -> list[Array]:
    import numpy as np

    experts = range(pieces[0].shape[0])
    if split is Split.EXPERTS_DOWN:
        return [np.concatenate([piece[expert] for piece in pieces], axis=1) for expert in experts]
    rows = pieces[0].shape[1] // 2
    halves = (slice(0, rows), slice(rows, None))
    return [np.concatenate([piece[expert, half] for piece in pieces]) for expert in experts for half in halves]
