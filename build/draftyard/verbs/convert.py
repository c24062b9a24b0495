"""Makes a checkpoint in TensorRT-LLM's format out of a model directory, streaming tensor by tensor."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from draftyard.doors.config_files import write_config
from draftyard.doors.tensors import MappedTensorFile, TensorWriter, free_bytes, open_tensor_file, tensor_file_bytes
from draftyard.nouns.blueprint import Step
from draftyard.nouns.digest import Json, canonical
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.source import Source
from draftyard.nouns.tensor import TensorHeader, TensorSpec, TensorType, name_list
from draftyard.rules.casting import cast
from draftyard.rules.families.family import Part, Rule
from draftyard.rules.families.known_families import FAMILIES
from draftyard.rules.shards import Array, Mapping2D, checkpoint_name, holds, omitted, shard
from draftyard.rules.trtllm import DTYPES, TENSOR_TYPES, Expected, checkpoint_config, expected_tensors
from draftyard.verbs.inspect import inspect
from draftyard.verbs.making import Workplace

_BUG_HINT = "report this: the tables of the family and of the checkpoint format disagree"


@dataclass(frozen=True, slots=True)
class Conversion:
    """One checkpoint to be made: of what, in which type, cut how, and what each rank's file must hold."""

    source: Source
    config: Mapping[str, Json]
    type: TensorType
    mapping: Mapping2D
    rules: tuple[Rule, ...]
    expected: tuple[Expected, ...]

    def specs(self, rank: int) -> list[TensorSpec]:
        """The tensors of the file of `rank`."""
        return [TensorSpec(name, kind, shape) for name, (kind, shape) in self.expected[rank].items()]


def make_checkpoint(step: Step, workplace: Workplace) -> tuple[str, ...]:
    """Fill the staging directory with `config.json` and `rank{r}.safetensors`; returns notes.

    Holds no more than the source tensors of one checkpoint tensor. Failure when the source is contradictory or not the
    one that was planned, when a value overflows in the new type, or when the disk is too small.
    """
    directory = workplace.source_paths[0]
    conversion = _prepare(step, inspect(directory))
    written_bytes = _check_space(conversion, workplace.staging)
    _write_ranks(conversion, directory, workplace)
    write_config(workplace.staging / "config.json", conversion.config)
    consumed = len({part.name for rule in conversion.rules for part in rule.parts})
    return (
        f"{consumed} source tensors consumed, {len(conversion.source.tensors) - consumed} ignored",
        f"{written_bytes} bytes in {conversion.mapping.world_size} files",
        *conversion.source.notes,
        *_range_notes(conversion),
    )


def _range_notes(conversion: Conversion) -> tuple[str, ...]:
    """Weights are checked for overflow; sums inside the network cannot be seen from here."""
    if conversion.source.weight_type is TensorType.BF16 and conversion.type is TensorType.F16:
        return ("bf16 weights in fp16: activations may overflow; suspect the precision when output degenerates",)
    return ()


def _prepare(step: Step, source: Source) -> Conversion:
    """Check the request against the source before any weight is read."""
    config = step.parameters["config"]
    if not isinstance(config, Mapping):
        raise ValueError("a checkpoint step carries the complete config.json under `config`")
    if source.digest not in step.inputs:
        raise Failure(
            f"{source.path} changed since the plan was made", "plan again, and leave the model alone meanwhile"
        )
    precision = {word: precision for precision, word in DTYPES.items()}[str(config["dtype"])]
    mapping = _mapping(config)
    own = checkpoint_config(source.network, precision, mapping.tp_size, mapping.pp_size)
    if canonical(own) != canonical(config):
        raise ValueError("the step's config is not that of its source")
    conversion = Conversion(
        source=source,
        config=config,
        type=TENSOR_TYPES[str(config["dtype"])],
        mapping=mapping,
        rules=FAMILIES[source.network.family].rules(source.network),
        expected=tuple(expected_tensors(config, rank) for rank in range(mapping.world_size)),
    )
    _check_consumption(conversion)
    for rank, expected in enumerate(conversion.expected):
        _check_names(_produced_names(conversion, rank), expected, rank)
    return conversion


def _mapping(config: Mapping[str, Json]) -> Mapping2D:
    block = config["mapping"]
    if not isinstance(block, Mapping):
        raise ValueError("mapping must be an object")
    return Mapping2D(int(str(block["tp_size"])), int(str(block["pp_size"])))


def _check_consumption(conversion: Conversion) -> None:
    """Every source tensor goes into exactly one checkpoint tensor; only a tied head takes the embedding again."""
    uses = Counter(
        part.name
        for rule in conversion.rules
        if not (rule.name == "lm_head.weight" and conversion.source.network.tied_head)
        for part in rule.parts
    )
    twice = sorted(name for name, count in uses.items() if count > 1)
    unknown = sorted(set(uses) - {tensor.name for tensor in conversion.source.tensors})
    if twice or unknown:
        raise Failure(f"source tensors used twice: {twice[:10]}, not there: {unknown[:10]}", _BUG_HINT)


def _produced_names(conversion: Conversion, rank: int) -> list[str]:
    network, mapping = conversion.source.network, conversion.mapping
    stage = rank // mapping.tp_size
    return [
        checkpoint_name(rule, network, mapping.pp_size, stage)
        for rule in conversion.rules
        if holds(rule, network, mapping, stage)
    ]


def _check_names(produced: Sequence[str], expected: Expected, rank: int) -> None:
    missing, extra = sorted(set(expected) - set(produced)), sorted(set(produced) - set(expected))
    if missing or extra or len(set(produced)) != len(produced):
        raise Failure(
            f"rank {rank}: not produced: {name_list(missing) or 'none'}; not expected: {name_list(extra) or 'none'}",
            _BUG_HINT,
            ExitCode.WORK_FAILED,
        )


def _check_space(conversion: Conversion, staging: Path) -> int:
    """Exact bytes of all files; Failure when the file system has not so many."""
    needed = sum(tensor_file_bytes(conversion.specs(rank), {}) for rank in range(conversion.mapping.world_size))
    free = free_bytes(staging)
    if free < needed:
        raise Failure(f"the checkpoint needs {needed} bytes, {free} are free", "free disk space", ExitCode.ENVIRONMENT)
    return needed


def _write_ranks(conversion: Conversion, directory: Path, workplace: Workplace) -> None:
    headers = {tensor.name: tensor for tensor in conversion.source.tensors}
    files = {name: open_tensor_file(directory / name) for name in sorted({header.file for header in headers.values()})}
    wanted = [rule for rule in conversion.rules if not omitted(rule, conversion.source.network, conversion.mapping)]
    # In the order of the files, so that a disk is read from front to back.
    wanted.sort(key=lambda rule: (headers[rule.parts[0].name].file, headers[rule.parts[0].name].offset_bytes))
    total = sum(headers[part.name].size_bytes for rule in wanted for part in rule.parts)
    done = 0
    with ExitStack() as stack:
        writers = [
            stack.enter_context(TensorWriter(workplace.staging / f"rank{rank}.safetensors", conversion.specs(rank), {}))
            for rank in range(conversion.mapping.world_size)
        ]
        for rule in wanted:
            parts = [_load(part, headers[part.name], files, conversion, rule) for part in rule.parts]
            _write_pieces(conversion, rule, parts, writers)
            for part in rule.parts:
                files[headers[part.name].file].release(part.name)
                done += headers[part.name].size_bytes
            workplace.progress(done / total, rule.parts[0].name)


def _load(
    part: Part, header: TensorHeader, files: Mapping[str, MappedTensorFile], conversion: Conversion, rule: Rule
) -> Array:
    target = TensorType.F32 if rule.float32 else conversion.type
    result = cast(files[header.file].read(part.name), header.shape, header.type, target)
    if result.overflows:
        raise Failure(
            f"{part.name}: {result.overflows} finite values of {header.type} become infinite in {target}",
            "choose bf16 (or fp32) as precision",
            ExitCode.WORK_FAILED,
        )
    return result.values


def _write_pieces(conversion: Conversion, rule: Rule, parts: Sequence[Array], writers: Sequence[TensorWriter]) -> None:
    network, mapping = conversion.source.network, conversion.mapping
    for stage in range(mapping.pp_size):
        if not holds(rule, network, mapping, stage):
            continue
        name = checkpoint_name(rule, network, mapping.pp_size, stage)
        for tp_rank in range(mapping.tp_size):
            rank = mapping.rank(stage, tp_rank)
            piece = shard(rule, parts, network, mapping.tp_size, tp_rank)
            shape = conversion.expected[rank][name][1]
            if piece.shape != shape:
                raise Failure(
                    f"rank {rank}: {name} has shape {list(piece.shape)}, expected {list(shape)}",
                    _BUG_HINT,
                    ExitCode.WORK_FAILED,
                )
            writers[rank].write(name, np.ascontiguousarray(piece).data)
