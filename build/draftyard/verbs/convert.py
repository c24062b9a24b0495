"""Makes a checkpoint in TensorRT-LLM's format out of a model directory, streaming tensor by tensor."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from draftyard.doors.config_files import write_config
from draftyard.doors.tensors import free_bytes, tensor_file_bytes
from draftyard.nouns.blueprint import Step
from draftyard.nouns.digest import canonical
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.tensor import TensorType, name_list
from draftyard.rules.casting import Losses
from draftyard.rules.quantisation import Expected, is_fp8, is_scale
from draftyard.rules.shards import checkpoint_name, holds
from draftyard.rules.trtllm import TENSOR_TYPES, expected_tensors
from draftyard.rules.trtllm_heads import promised_tensors
from draftyard.verbs.fp8_conversion import CalibratedScales, quantised_rules, read_ranges, wishes_of, with_fp8
from draftyard.verbs.making import Workplace
from draftyard.verbs.portions import Ingredients, ingredients, mapping_of
from draftyard.verbs.rank_writing import BUG_HINT, Conversion, Portion, write_ranks
from draftyard.verbs.stored_scales import StoredScales


def make_checkpoint(step: Step, workplace: Workplace) -> tuple[str, ...]:
    """Fill the staging directory with `config.json` and `rank{r}.safetensors`; returns notes.

    Memory is the same for models of any size. Failure when the source is contradictory or not the one that was planned,
    when a value is no finite number or becomes none in the new type, or when the disk is too small.
    """
    found = ingredients(step, workplace.source_paths)
    conversion = prepare(step, found)
    written_bytes = _check_space(conversion, workplace.staging)
    conversion, scale_notes = _with_scales(conversion, step, workplace)
    losses = write_ranks(conversion, workplace)
    write_config(workplace.staging / "config.json", conversion.config)
    used, own = (sum(len(names) for names in sets) for sets in zip(*map(_used_and_own, found.portions), strict=True))
    return (
        f"{used} source tensors consumed, {own - used} ignored",
        f"{written_bytes} bytes in {conversion.mapping.world_size} files",
        *found.notes,
        *scale_notes,
        *_size_notes(conversion),
        *_range_notes(conversion, found.weight_type, losses),
    )


def _with_scales(conversion: Conversion, step: Step, workplace: Workplace) -> tuple[Conversion, tuple[str, ...]]:
    """Scales of an FP8 checkpoint: the source's own, or of a calibration, which is the step's last input."""
    if not is_fp8(conversion.config):
        return conversion, ()
    target, wishes = conversion.portions[0], wishes_of(step.parameters)
    if wishes.stored:
        scaled, notes = with_fp8(conversion, StoredScales(target, wishes))
    else:
        ranges = read_ranges(workplace.input_path(step.inputs[-1]))
        scales = CalibratedScales(target, quantised_rules(conversion), ranges, wishes)
        scaled, notes = with_fp8(conversion, scales)
    for rank, expected in enumerate(conversion.expected):
        _check_names(tuple(scaled.constants[rank]), {name: expected[name] for name in expected if is_scale(name)}, rank)
    return scaled, notes


def _used_and_own(portion: Portion) -> tuple[frozenset[str], frozenset[str]]:
    """The network's own tensors: those that go into the checkpoint, and all."""
    return portion.own & {part.name for rule in portion.rules for part in rule.parts}, portion.own


def _size_notes(conversion: Conversion) -> tuple[str, ...]:
    """What heads add to the files: a person may not expect copies of a vocabulary projection."""
    if len(conversion.portions) == 1:
        return ()
    plain = expected_tensors(conversion.config, 0)
    added = sum(spec.size_bytes for spec in conversion.specs(0) if spec.name not in plain)
    return (f"the heads take {added} bytes of each rank's file",)


def _range_notes(conversion: Conversion, weight_type: TensorType, losses: Losses) -> tuple[str, ...]:
    """Weights are checked for overflow; sums inside the network cannot be seen from here."""
    notes = []
    if weight_type is TensorType.BF16 and conversion.type is TensorType.F16:
        notes.append("bf16 weights in fp16: activations may overflow; suspect the precision when output degenerates")
    if losses.vanished:
        notes.append(f"{losses.vanished} weights too small for {conversion.type} became zero")
    return tuple(notes)


def prepare(step: Step, found: Ingredients) -> Conversion:
    """Check the request against the sources before any weight is read."""
    config = step.parameters["config"]
    if not isinstance(config, Mapping):
        raise ValueError("a checkpoint step carries the complete config.json under `config`")
    if canonical(found.config) != canonical(config):
        raise ValueError("the step's config is not that of its sources")
    mapping = mapping_of(config)
    conversion = Conversion(
        portions=found.portions,
        config=config,
        type=TENSOR_TYPES[str(config["dtype"])],
        mapping=mapping,
        expected=tuple(promised_tensors(config, rank) for rank in range(mapping.world_size)),
    )
    for portion in conversion.portions:
        _check_consumption(portion)
    for rank, expected in enumerate(conversion.expected):
        weights = {name: promise for name, promise in expected.items() if not is_scale(name)}
        _check_names(_produced_names(conversion, rank), weights, rank)
    return conversion


def _check_consumption(portion: Portion) -> None:
    """Every own tensor goes into one checkpoint tensor of each copy; only a tied head takes the embedding again."""
    uses = Counter(
        part.name
        for rule in portion.rules
        if not (rule.name == "lm_head.weight" and portion.network.tied_head)
        for part in rule.parts
    )
    wrong = sorted(name for name, count in uses.items() if name in portion.own and count != portion.copies)
    unknown = sorted(set(uses) - set(portion.stored))
    if wrong or unknown:
        raise Failure(f"source tensors used too often: {wrong[:10]}, not there: {unknown[:10]}", BUG_HINT)


def _produced_names(conversion: Conversion, rank: int) -> list[str]:
    mapping = conversion.mapping
    stage = rank // mapping.tp_size
    return [
        checkpoint_name(rule, portion.network, mapping.pp_size, stage)
        for portion in conversion.portions
        for rule in portion.rules
        if holds(rule, portion.network, mapping, stage)
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
