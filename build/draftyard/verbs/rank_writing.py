"""Streams source tensors into the files of all ranks: a few megabytes at a time, several at once, none held whole."""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftyard.doors.host import read_host
from draftyard.doors.tensors import TensorWriter, open_weights
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems
from draftyard.nouns.network import Network
from draftyard.nouns.tensor import TensorHeader, TensorSpec, TensorType
from draftyard.rules.casting import STORAGE, CastTensor, Losses, Scratch, cast
from draftyard.rules.families.family import Rule
from draftyard.rules.float8 import Quantiser, nan_bytes
from draftyard.rules.shards import (
    Array,
    Mapping2D,
    Placement,
    checkpoint_name,
    holds,
    omitted,
    piece_shape,
    placements,
)
from draftyard.rules.trtllm import Expected
from draftyard.verbs.making import Workplace

BUG_HINT = "report this: the tables of the family and of the checkpoint format disagree"
# A disk reads a megabyte at its full speed, and the allocator hands the same memory out again for a piece of it; from
# 4 MiB on every piece would be fresh memory, which costs more than all the rest.
_CHUNK_BYTES = 1 << 20
# Threads wait for the disk half of the time.
_THREADS_PER_PROCESSOR, _MOST_THREADS = 2, 8


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A source tensor: the directory it lies in, and its header, which names the file and the tensor in it."""

    directory: Path
    header: TensorHeader


@dataclass(frozen=True, slots=True)
class Portion:
    """What one network brings to a checkpoint: its rules, the sizes that cut its tensors, and where each part lies.

    `own` are the parts of the network's own files, each of which goes into exactly `copies` tensors when it is used;
    other parts are borrowed and may go into many.
    """

    network: Network
    rules: tuple[Rule, ...]
    stored: Mapping[str, StoredTensor]
    own: frozenset[str]
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Conversion:
    """One checkpoint to be made: of what, in which type, cut how, and what each rank's file must hold.

    `fp8` has what quantised source tensors go through, by their names; `constants` the small float32 tensors of each
    rank's file that follow from no source tensor alone: scales.
    """

    portions: tuple[Portion, ...]
    config: Mapping[str, Json]
    type: TensorType
    mapping: Mapping2D
    expected: tuple[Expected, ...]
    fp8: Mapping[str, Quantiser] = field(default_factory=dict)
    constants: tuple[Mapping[str, NDArray[np.float32]], ...] = ()

    def specs(self, rank: int) -> list[TensorSpec]:
        """The tensors of the file of `rank`."""
        return [TensorSpec(name, kind, shape) for name, (kind, shape) in self.expected[rank].items()]


@dataclass(frozen=True, slots=True)
class _Destination:
    """Where the rows of one part go in one file."""

    writer: TensorWriter
    name: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class _Task:
    """One source tensor on its way: each is read once, from front to back, however many tensors it goes into."""

    stored: StoredTensor
    type: TensorType
    destinations: list[_Destination]
    quantiser: Quantiser | None = None

    @property
    def header(self) -> TensorHeader:
        """The source tensor's."""
        return self.stored.header


_Tasks: TypeAlias = "dict[tuple[Path, str, TensorType], _Task]"


class _Buffers(threading.local):
    """Memory of one thread, used for one tensor after the other: fresh memory would cost as much as the reading."""

    def __init__(self) -> None:
        self._raw = np.empty(0, dtype=np.uint8)
        self._cast = np.empty(0, dtype=np.uint8)
        self.scratch = Scratch()

    def raw(self, size_bytes: int) -> memoryview:
        """Room for what is read."""
        if self._raw.nbytes < size_bytes:
            self._raw = np.empty(size_bytes, dtype=np.uint8)
        return self._raw[:size_bytes].data

    def cast(self, elements: int, storage: type[np.generic]) -> Array:
        """Room for what it becomes."""
        size_bytes = elements * np.dtype(storage).itemsize
        if self._cast.nbytes < size_bytes:
            self._cast = np.empty(size_bytes, dtype=np.uint8)
        return self._cast[:size_bytes].view(storage)


def write_ranks(conversion: Conversion, workplace: Workplace) -> Losses:
    """Write every rank's file; returns what casts lost. Failure names a tensor with values that are or become infinite.

    Tensors are read in the order of their files, so that a disk is read from front to back, and by several threads:
    numpy and the file operations let each other run.
    """
    large = _is_large(conversion, workplace.staging)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                TensorWriter(workplace.staging / f"rank{rank}.safetensors", conversion.specs(rank), {}, at_once=large)
            )
            for rank in range(conversion.mapping.world_size)
        ]
        for rank, constants in enumerate(conversion.constants):
            for name, values in constants.items():
                writers[rank].write(name, values.tobytes())
        tasks: _Tasks = {}
        for portion in conversion.portions:
            for rule in portion.rules:
                if not omitted(rule, portion.network, conversion.mapping):
                    _add_tasks(conversion, portion, rule, writers, tasks)
        ordered = sorted(tasks.values(), key=lambda task: (task.stored.directory, *_place(task.header)))
        return _run(ordered, large, workplace)


def _is_large(conversion: Conversion, staging: Path) -> bool:
    """Whether the sources would take a quarter of the free memory as page cache.

    They would push out what others keep there, and then themselves, before anybody reads them again.
    """
    stored = {one for portion in conversion.portions for one in portion.stored.values()}
    return sum(one.header.size_bytes for one in stored) > read_host(staging).available_bytes // 4


def _place(header: TensorHeader) -> tuple[str, int]:
    return header.file, header.offset_bytes


def _add_tasks(
    conversion: Conversion,
    portion: Portion,
    rule: Rule,
    writers: Sequence[TensorWriter],
    tasks: _Tasks,
) -> None:
    """One task a part and type; the rows that no part covers are written here: they are zeros."""
    network, mapping, target = portion.network, conversion.mapping, conversion.type
    destinations: dict[int, list[_Destination]] = {index: [] for index in range(len(rule.parts))}
    for stage in range(mapping.pp_size):
        if not holds(rule, network, mapping, stage):
            continue
        name = checkpoint_name(rule, network, mapping.pp_size, stage)
        for tp_rank in range(mapping.tp_size):
            rank = mapping.rank(stage, tp_rank)
            kind, shape = conversion.expected[rank][name]
            placed = placements(rule, network, mapping.tp_size, tp_rank)
            if rule.parts and piece_shape(rule, network, mapping.tp_size) != shape:
                made = list(piece_shape(rule, network, mapping.tp_size))
                raise Failure(
                    f"rank {rank}: {name} has shape {made}, expected {list(shape)}", BUG_HINT, ExitCode.WORK_FAILED
                )
            covered = sum(len(one.rows) * len(one.columns) for one in placed) * kind.item_bytes
            _write_zeros(writers[rank], name, covered, prod(shape) * kind.item_bytes)
            for one in placed:
                destinations[one.part].append(_Destination(writers[rank], name, one))
            target = kind
    for index, part in enumerate(rule.parts):
        stored = portion.stored[part.name]
        path = stored.directory / stored.header.file
        quantiser = conversion.fp8[part.name] if target is TensorType.F8_E4M3 else None
        task = tasks.setdefault((path, stored.header.name, target), _Task(stored, target, [], quantiser))
        task.destinations.extend(destinations[index])


def _write_zeros(writer: TensorWriter, name: str, begin: int, end: int) -> None:
    zeros = bytes(min(_CHUNK_BYTES, end - begin))
    for at in range(begin, end, _CHUNK_BYTES):
        writer.write_at(name, at, zeros[: end - at])


def _run(tasks: Sequence[_Task], large: bool, workplace: Workplace) -> Losses:
    """Run all tasks; the first that fails stops the others between two pieces, and an interrupt stops all."""
    stop, total = threading.Event(), sum(task.header.size_bytes for task in tasks)
    done, losses, buffers = 0, Losses(), _Buffers()
    threads = max(1, min(_MOST_THREADS, _THREADS_PER_PROCESSOR * len(os.sched_getaffinity(0)), len(tasks)))
    with ThreadPoolExecutor(threads) as pool:
        futures = {pool.submit(_convert, task, large, buffers, stop): task for task in tasks}
        waiting: set[Future[Losses]] = set(futures)
        try:
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_EXCEPTION, timeout=0.2)
                for future in sorted(ended, key=lambda one: futures[one].header.name):
                    losses += future.result()
                    done += futures[future].header.size_bytes
                    workplace.progress(done / total if total else 1.0, futures[future].header.name)
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return losses


def _convert(task: _Task, large: bool, buffers: _Buffers, stop: threading.Event) -> Losses:
    """Read, cast and write one tensor, a few rows at a time.

    The file is opened anew: the kernel reads ahead for each descriptor, and threads that share one look like chance.
    """
    header, losses = task.header, Losses()
    file = open_weights(task.stored.directory / header.file, [header])
    rows, columns = header.shape[0], prod(header.shape[1:])
    row_bytes = columns * header.type.item_bytes
    step = max(1, _CHUNK_BYTES // max(1, row_bytes))
    raw = buffers.raw(min(step, rows) * row_bytes)
    out = (
        None
        if task.type is header.type or task.quantiser
        else buffers.cast(min(step, rows) * columns, STORAGE[task.type])
    )
    for begin in range(0, rows, step):
        if stop.is_set():
            return losses
        count = min(step, rows - begin)
        data = raw[: count * row_bytes]
        file.read_into(header.name, begin * row_bytes, data, once=large)
        if task.quantiser is None:
            result = cast(data, (count, columns), header.type, task.type, out, buffers.scratch)
        else:
            result = _quantised(data, (count, columns), header.type, task.quantiser)
        losses += result.losses
        for destination in task.destinations:
            _write_rows(destination, begin, result.values)
    raise_problems(_losses_problems(header, task.type, losses), ExitCode.WORK_FAILED)
    return losses


def _quantised(data: memoryview, shape: tuple[int, ...], source: TensorType, quantiser: Quantiser) -> CastTensor:
    """E4M3 bytes, every one of them looked at: what is no number in FP8 is told like what was none before."""
    codes = quantiser(np.frombuffer(data, dtype=STORAGE[source])).reshape(shape)
    return CastTensor(codes, Losses(not_finite=nan_bytes(codes)))


def _write_rows(destination: _Destination, begin: int, values: Array) -> None:
    """Write what of the source rows `begin`, `begin` + 1, ... a file takes."""
    place = destination.placement
    first, last = max(place.rows.start, begin), min(place.rows.stop, begin + len(values))
    if first >= last:
        return
    piece = values[first - begin : last - begin, place.columns.start : place.columns.stop]
    row_bytes = len(place.columns) * values.dtype.itemsize
    at = (place.at + first - place.rows.start) * row_bytes
    destination.writer.write_at(destination.name, at, np.ascontiguousarray(piece).data)


def _losses_problems(header: TensorHeader, target: TensorType, losses: Losses) -> list[Problem]:
    problems = []
    if losses.not_finite:
        problems.append(
            Problem(
                f"{header.name}: {losses.not_finite} values in {header.file} are NaN or infinite",
                "fetch the file again; if it is as its maker saved it, the model is broken",
            )
        )
    if losses.overflows:
        problems.append(
            Problem(
                f"{header.name}: {losses.overflows} finite values of {header.type} become infinite in {target}",
                "choose bf16 (or fp32) as precision",
            )
        )
    return problems
