"""Finds the scales of an FP8 checkpoint: one pass over the weights, and the ranges that a calibration measured."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

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
_GATED = {"mlp.fc.weight": "mlp.gate.weight", "mlp.gate.weight": "mlp.fc.weight"}
_CHUNK_BYTES = 8 * 1024 * 1024
Scales = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Fp8Wishes:
    """What a step says about scales that no calibration gives."""

    kv_scale: KvScale
    uncalibrated_experts: UncalibratedExperts


@dataclass(frozen=True, slots=True)
class _Module:
    """A quantised module: its rule, and scales [1] or [experts, 1]."""

    rule: Rule
    weight_scales: Scales
    activation_scale: np.float32


def read_ranges(directory: Path) -> ActivationRanges:
    """The ranges in a calibration's directory; Failure when another version wrote them."""
    return ranges_of(read_config(directory / RANGES_NAME))


def wishes_of(parameters: Mapping[str, Json]) -> Fp8Wishes:
    """The wishes in a checkpoint step's parameters."""
    block = object_of(parameters, "quantisation")
    return Fp8Wishes(KvScale(str(block["kv_scale"])), UncalibratedExperts(str(block["uncalibrated_experts"])))


def with_fp8(conversion: Conversion, ranges: ActivationRanges, wishes: Fp8Wishes) -> tuple[Conversion, tuple[str, ...]]:
    """The conversion with a quantiser for each source tensor of a quantised module, and every scale; and notes.

    Reads all weights that are to be quantised. Failure names what has no scale: a tensor of zeros, a value that is no
    number, a module or an expert that the calibration did not reach.
    """
    target = conversion.portions[0]
    rules = [rule for rule in target.rules if rule.split is not Split.VOCABULARY or rule.name == "lm_head.weight"]
    quantised = [rule for rule in rules if is_quantised(conversion.config, module_of(rule))]
    largest = _largest_magnitudes(target, quantised)
    modules: list[_Module] = []
    fp8: dict[str, Quantiser] = {}
    borrowed: dict[str, int] = {}
    for rule in quantised:
        scales = _weight_scales(rule, _siblings(rule, quantised), largest)
        active = activation_scale(ranges, module_of(rule), wishes.uncalibrated_experts)
        if active.borrowed:
            borrowed[module_of(rule)] = len(active.borrowed)
        for part, index in zip(rule.parts, _expert_of(rule), strict=True):
            fp8[part.name] = Quantiser(target.stored[part.name].header.type, scales[index])
        modules.append(_Module(rule, scales, active.value))
    cached = _kv_scales(conversion, ranges, wishes)
    made = replace(conversion, fp8=fp8, constants=_constants(conversion, modules, cached))
    notes = [_size_note(conversion, modules), f"calibrated on {ranges.tokens} tokens of {ranges.samples} texts"]
    if borrowed:
        total = sum(borrowed.values())
        notes.append(f"warning: {total} ranges of experts were borrowed from siblings: {name_list(sorted(borrowed))}")
    if cached:
        notes.extend(kv_notes(ranges, list(cached.values()), wishes.kv_scale))
    return made, tuple(notes)


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


def _weight_scales(rule: Rule, siblings: tuple[Part, ...], largest: Mapping[str, np.float32]) -> Scales:
    """[1], over all parts and siblings; of stacked experts [experts, 1]."""
    experts = _expert_of(rule)
    scales = np.empty((max(experts) + 1,), dtype=np.float32)
    for expert in range(len(scales)):
        parts = [part for part, index in zip(rule.parts, experts, strict=True) if index == expert]
        names = [part.name for part in (*parts, *siblings)]
        # NaN must win over every number, so that it is seen.
        worst = max(names, key=lambda name: (not np.isfinite(largest[name]), largest[name]))
        scales[expert] = scale_of(largest[worst], worst)
    return scales


def _expert_of(rule: Rule) -> list[int]:
    """The expert of each part; all of a dense rule's parts share one scale."""
    if rule.split is Split.EXPERTS_UP:
        return [index // 2 for index in range(len(rule.parts))]
    if rule.split is Split.EXPERTS_DOWN:
        return list(range(len(rule.parts)))
    return [0] * len(rule.parts)


def _kv_scales(conversion: Conversion, ranges: ActivationRanges, wishes: Fp8Wishes) -> dict[int, np.float32]:
    if not has_fp8_cache(conversion.config):
        return {}
    layers = range(conversion.portions[0].network.layers)
    return {layer: kv_scale(ranges, layer, wishes.kv_scale) for layer in layers}


def _constants(
    conversion: Conversion, modules: list[_Module], cached: Mapping[int, np.float32]
) -> tuple[dict[str, Scales], ...]:
    """The scales in each rank's file, under the names of its stage."""
    network, mapping = conversion.portions[0].network, conversion.mapping
    constants: list[dict[str, Scales]] = []
    for rank in range(mapping.world_size):
        stage = rank // mapping.tp_size
        own: dict[str, Scales] = {}

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
