"""Makes a checkpoint in TensorRT-LLM's format out of a model directory, streaming tensor by tensor."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from draftyard.doors.config_files import write_config
from draftyard.doors.tensors import free_bytes, tensor_file_bytes
from draftyard.nouns.blueprint import Step
from draftyard.nouns.digest import Json, canonical
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.source import Source
from draftyard.nouns.tensor import TensorType, name_list
from draftyard.rules.casting import Losses
from draftyard.rules.families.known_families import FAMILIES
from draftyard.rules.shards import Mapping2D, checkpoint_name, holds
from draftyard.rules.trtllm import DTYPES, TENSOR_TYPES, Expected, checkpoint_config, expected_tensors
from draftyard.verbs.inspect import inspect
from draftyard.verbs.making import Workplace
from draftyard.verbs.rank_writing import BUG_HINT, Conversion, write_ranks


def make_checkpoint(step: Step, workplace: Workplace) -> tuple[str, ...]:
    """Fill the staging directory with `config.json` and `rank{r}.safetensors`; returns notes.

    Memory is the same for models of any size. Failure when the source is contradictory or not the one that was planned,
    when a value is no finite number or becomes none in the new type, or when the disk is too small.
    """
    directory = workplace.source_paths[0]
    conversion = _prepare(step, inspect(directory))
    written_bytes = _check_space(conversion, workplace.staging)
    losses = write_ranks(conversion, directory, workplace)
    write_config(workplace.staging / "config.json", conversion.config)
    consumed = len({part.name for rule in conversion.rules for part in rule.parts})
    return (
        f"{consumed} source tensors consumed, {len(conversion.source.tensors) - consumed} ignored",
        f"{written_bytes} bytes in {conversion.mapping.world_size} files",
        *conversion.source.notes,
        *_range_notes(conversion, losses),
    )


def _range_notes(conversion: Conversion, losses: Losses) -> tuple[str, ...]:
    """Weights are checked for overflow; sums inside the network cannot be seen from here."""
    notes = []
    if conversion.source.weight_type is TensorType.BF16 and conversion.type is TensorType.F16:
        notes.append("bf16 weights in fp16: activations may overflow; suspect the precision when output degenerates")
    if losses.vanished:
        notes.append(f"{losses.vanished} weights too small for {conversion.type} became zero")
    return tuple(notes)


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
        raise Failure(f"source tensors used twice: {twice[:10]}, not there: {unknown[:10]}", BUG_HINT)


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
            BUG_HINT,
            ExitCode.WORK_FAILED,
        )


def _check_space(conversion: Conversion, staging: Path) -> int:
    """Exact bytes of all files; Failure when the file system has not so many."""
    needed = sum(tensor_file_bytes(conversion.specs(rank), {}) for rank in range(conversion.mapping.world_size))
    free = free_bytes(staging)
    if free < needed:
        raise Failure(f"the checkpoint needs {needed} bytes, {free} are free", "free disk space", ExitCode.ENVIRONMENT)
    return needed
