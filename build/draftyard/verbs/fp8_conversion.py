"""Finds the scales of an FP8 checkpoint: one pass over the weights, and the ranges that a calibration measured."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftyard.doors.config_files import read_config
from draftyard.doors.tensors import MappedTensorFile, open_weights
from draftyard.nouns.activation_ranges import ActivationRanges
from draftyard.nouns.digest import Json
from draftyard.nouns.recipe import KvScale, UncalibratedExperts
from draftyard.nouns.tensor import name_list
from draftyard.rules.casting import STORAGE
from draftyard.rules.families.family import Part, Rule, Split
from draftyard.rules.float8 import Quantiser, largest_magnitude
from draftyard.rules.fp8_scales import activation_scale, kv_notes, kv_scale, ranges_of, scale_of
from draftyard.rules.quantisation import ACTIVATION_SCALE, KV_SCALE, WEIGHT_SCALE, has_fp8_cache, is_quantised
from draftyard.rules.shards import checkpoint_name, holds
from draftyard.rules.trtllm import object_of
from draftyard.verbs.rank_writing import Conversion, Portion, StoredTensor

RANGES_NAME = "amax.json"
STORED = "stored"
_GATED = {"mlp.fc.weight": "mlp.gate.weight", "mlp.gate.weight": "mlp.fc.weight"}
_CHUNK_BYTES = 8 * 1024 * 1024
ScaleArray: TypeAlias = "NDArray[np.float32]"


@dataclass(frozen=True, slots=True)
class Fp8Wishes:
    """What a step says about scales; `stored` ones lie in the source beside its FP8 weights."""

    kv_scale: KvScale
    uncalibrated_experts: UncalibratedExperts
    stored: bool


@dataclass(frozen=True, slots=True)
class _Module:
    """A quantised module: its rule, and scales [1] or [experts, 1]."""

    rule: Rule
    weight_scales: ScaleArray
    activation_scale: np.float32


def read_ranges(directory: Path) -> ActivationRanges:
    """The ranges in a calibration's directory; Failure when another version wrote them."""
    return ranges_of(read_config(directory / RANGES_NAME))


def wishes_of(parameters: Mapping[str, Json]) -> Fp8Wishes:
    """The wishes in a checkpoint step's parameters."""
    block = object_of(parameters, "quantisation")
    experts = UncalibratedExperts(str(block["uncalibrated_experts"]))
    return Fp8Wishes(KvScale(str(block["kv_scale"])), experts, block["scales"] == STORED)


class Scales(Protocol):
    """Where the scales of a checkpoint come from: a calibration, or a source that is FP8 already."""

    def weight_scales(self, rule: Rule, siblings: tuple[Part, ...]) -> ScaleArray:
        """[1], or [experts, 1] of stacked experts; Failure names what has no scale."""
        ...

    def activation_scale(self, rule: Rule, siblings: tuple[Part, ...]) -> np.float32:
        """The scale of a module's input; Failure names what has none."""
        ...

    def quantiser(self, part: Part, scale: np.float32) -> Quantiser:
        """What a source tensor goes through to have this scale."""
        ...

    def cache_scale(self, layer: int) -> np.float32:
        """The scale of a layer's keys and values; Failure when there is none."""
        ...

    def notes(self) -> tuple[str, ...]:
        """What people should know, once all scales were asked for."""
        ...


class CalibratedScales:
    """Scales of 16-bit weights: the largest magnitudes of the weights, and those that a calibration measured."""

    def __init__(self, portion: Portion, rules: list[Rule], ranges: ActivationRanges, wishes: Fp8Wishes) -> None:
        """Reads all weights of `rules`."""
        self._stored = portion.stored
        self._largest = _largest_magnitudes(portion, rules)
        self._ranges = ranges
        self._wishes = wishes
        self._borrowed: dict[str, int] = {}
        self._cached: list[np.float32] = []

    def weight_scales(self, rule: Rule, siblings: tuple[Part, ...]) -> ScaleArray:
        """max |w| / 448 over all parts and siblings."""
        names = [[part.name for part in (*parts, *siblings)] for parts in parts_by_expert(rule)]
        # NaN must win over every number, so that it is seen.
        worst = [
            max(group, key=lambda name: (not np.isfinite(self._largest[name]), self._largest[name])) for group in names
        ]
        return np.array([scale_of(self._largest[name], name) for name in worst], dtype=np.float32)

    def activation_scale(self, rule: Rule, siblings: tuple[Part, ...]) -> np.float32:
        """max |x| / 448 over the calibration."""
        found = activation_scale(self._ranges, module_of(rule), self._wishes.uncalibrated_experts)
        if found.borrowed:
            self._borrowed[module_of(rule)] = len(found.borrowed)
        return found.value

    def quantiser(self, part: Part, scale: np.float32) -> Quantiser:
        """From the source's type."""
        return Quantiser(self._stored[part.name].header.type, scale)

    def cache_scale(self, layer: int) -> np.float32:
        """As measured, not below 1."""
        self._cached.append(kv_scale(self._ranges, layer, self._wishes.kv_scale))
        return self._cached[-1]

    def notes(self) -> tuple[str, ...]:
        """How much text, what was borrowed, how cache scales are distributed."""
        ranges, borrowed = self._ranges, self._borrowed
        notes = [f"calibrated on {ranges.tokens} tokens of {ranges.samples} texts"]
        if borrowed:
            total, names = sum(borrowed.values()), name_list(sorted(borrowed))
            notes.append(f"warning: {total} ranges of experts were borrowed from siblings: {names}")
        if self._cached:
            notes.extend(kv_notes(ranges, self._cached, self._wishes.kv_scale))
        return tuple(notes)


def quantised_rules(conversion: Conversion) -> list[Rule]:
    """The rules of the target's own tensors that become FP8."""
    rules = conversion.portions[0].rules
    return [
        rule for rule in rules if rule.name.endswith(".weight") and is_quantised(conversion.config, module_of(rule))
    ]


def with_fp8(conversion: Conversion, scales: Scales) -> tuple[Conversion, tuple[str, ...]]:
    """The conversion with a quantiser for each source tensor of a quantised module, and every scale; and notes.

    Failure names what has no scale: a tensor of zeros, a value that is no number, a module or an expert that the
    calibration did not reach.
    """
    quantised = quantised_rules(conversion)
    modules: list[_Module] = []
    fp8: dict[str, Quantiser] = {}
    for rule in quantised:
        siblings = _siblings(rule, quantised)
        found = scales.weight_scales(rule, siblings)
        for scale, parts in zip(found, parts_by_expert(rule), strict=True):
            fp8 |= {part.name: scales.quantiser(part, scale) for part in parts}
        modules.append(_Module(rule, found, scales.activation_scale(rule, siblings)))
    layers = range(conversion.portions[0].network.layers if has_fp8_cache(conversion.config) else 0)
    cached = {layer: scales.cache_scale(layer) for layer in layers}
    made = replace(conversion, fp8=fp8, constants=_constants(conversion, modules, cached))
    return made, (_size_note(conversion, modules), *scales.notes())


def module_of(rule: Rule) -> str:
    """The dotted name of a rule's module, with the global index of its layer."""
    name = rule.name if rule.layer is None else f"transformer.layers.{rule.layer}.{rule.name}"
    return name.removesuffix(".weight")


def _largest_magnitudes(portion: Portion, rules: list[Rule]) -> dict[str, np.float32]:
    """max |w| of every source tensor of these rules, read by several threads in the order of the files."""
    wanted = {part.name: portion.stored[part.name] for rule in rules for part in rule.parts}
    ordered = sorted(wanted.items(), key=lambda item: (item[1].header.file, item[1].header.offset_bytes))
    paths = {stored.directory / stored.header.file for stored in wanted.values()}
    headers = [stored.header for stored in wanted.values()]
    files = {path: open_weights(path, headers) for path in sorted(paths)}

    def measure(item: tuple[str, StoredTensor]) -> tuple[str, np.float32]:
        name, stored = item
        file = files[stored.directory / stored.header.file]
        return name, _measure(file, stored)

    with ThreadPoolExecutor(max(1, min(4, len(os.sched_getaffinity(0))))) as pool:
        return dict(pool.map(measure, ordered))


def _measure(file: MappedTensorFile, stored: StoredTensor) -> np.float32:
    header, largest = stored.header, np.float32(0)
    raw = memoryview(bytearray(min(_CHUNK_BYTES, header.size_bytes)))
    for begin in range(0, header.size_bytes, _CHUNK_BYTES):
        data = raw[: header.size_bytes - begin]
        file.read_into(header.name, begin, data)
        # Unlike `max`, `maximum` keeps a NaN.
        values = np.frombuffer(data, dtype=STORAGE[header.type])
        largest = np.maximum(largest, largest_magnitude(values, header.type))
    return np.float32(largest)


def _siblings(rule: Rule, quantised: list[Rule]) -> tuple[Part, ...]:
    """The other half of a gated feed-forward: TensorRT-LLM multiplies both as one matrix, which has one scale.

    With scales of their own the builder would dequantise both and quantise them again with the larger one
    (`fuse_gate_mlp`); ModelOpt shares it as well.
    """
    other = _GATED.get(rule.name)
    return tuple(part for one in quantised if one.layer == rule.layer and one.name == other for part in one.parts)


def parts_by_expert(rule: Rule) -> list[tuple[Part, ...]]:
    """The parts that share one scale: those of each expert, or all of a dense rule."""
    if rule.split is Split.EXPERTS_UP:
        return [rule.parts[at : at + 2] for at in range(0, len(rule.parts), 2)]
    if rule.split is Split.EXPERTS_DOWN:
        return [(part,) for part in rule.parts]
    return [rule.parts]


def _constants(
    conversion: Conversion, modules: list[_Module], cached: Mapping[int, np.float32]
) -> tuple[dict[str, ScaleArray], ...]:
    """The scales in each rank's file, under the names of its stage."""
    network, mapping = conversion.portions[0].network, conversion.mapping
    constants: list[dict[str, ScaleArray]] = []
    for rank in range(mapping.world_size):
        stage = rank // mapping.tp_size
        own: dict[str, ScaleArray] = {}

        def local(rule: Rule, stage: int = stage) -> str:
            return checkpoint_name(rule, network, mapping.pp_size, stage).removesuffix(".weight")

        for module in modules:
            if not holds(module.rule, network, mapping, stage):
                continue
            stacked = module.rule.split in (Split.EXPERTS_UP, Split.EXPERTS_DOWN)
            scales = module.weight_scales.reshape(-1, 1) if stacked else module.weight_scales
            own[f"{local(module.rule)}.{WEIGHT_SCALE}"] = scales
            own[f"{local(module.rule)}.{ACTIVATION_SCALE}"] = np.array([module.activation_scale], dtype=np.float32)
        for rule in conversion.portions[0].rules:
            scale = cached.get(-1 if rule.layer is None else rule.layer)
            if scale is not None and rule.name == "attention.qkv.weight" and holds(rule, network, mapping, stage):
                own[f"{local(rule).removesuffix('attention.qkv')}{KV_SCALE}"] = np.array([scale], dtype=np.float32)
        constants.append(own)
    return tuple(constants)


def _size_note(conversion: Conversion, modules: list[_Module]) -> str:
    """Bytes before and after by kind of module, so that one that changed nothing is seen."""
    stored = conversion.portions[0].stored
    sizes: dict[str, tuple[int, int]] = {}
    for module in modules:
        kind = module.rule.name.removesuffix(".weight")
        before, after = sizes.get(kind, (0, 0))
        headers = [stored[part.name].header for part in module.rule.parts]
        elements = sum(header.size_bytes // header.type.item_bytes for header in headers)
        sizes[kind] = (before + sum(header.size_bytes for header in headers), after + elements)
    words = ", ".join(f"{kind} {before} -> {after}" for kind, (before, after) in sorted(sizes.items()))
    return f"bytes of quantised modules, source and FP8: {words}"
