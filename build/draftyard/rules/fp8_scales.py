"""From largest magnitudes to the scales of FP8: one a tensor, shared where TensorRT-LLM multiplies tensors together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftyard.nouns.activation_ranges import RANGES_FORMAT, ActivationRanges
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.recipe import KvScale, UncalibratedExperts
from draftyard.nouns.tensor import name_list
from draftyard.rules.float8 import LARGEST

_MORE_TEXT = "give more or longer calibration texts, or set quantisation.uncalibrated_experts to sibling_max"
_RECALIBRATE = "remove this calibration from the store and build again"


@dataclass(frozen=True, slots=True)
class ActivationScale:
    """The scale of one module's input; `borrowed` are experts that took the largest value of their siblings."""

    value: np.float32
    borrowed: tuple[int, ...] = ()


def scale_of(amax: np.float32, name: str) -> np.float32:
    """amax / 448, in float32, as ModelOpt computes it. Failure names the tensor whose amax is zero or no number."""
    if not np.isfinite(amax) or amax <= 0:
        what = "holds zeros only" if amax == 0 else f"holds {amax}"
        raise Failure(
            f"{name} {what}, so it has no FP8 scale",
            "fetch the weights again, or exclude the module (quantisation.exclude_modules)",
            ExitCode.WORK_FAILED,
        )
    return np.float32(np.float32(amax) / np.float32(LARGEST))


def activation_scale(ranges: ActivationRanges, module: str, uncalibrated: UncalibratedExperts) -> ActivationScale:
    """The one scale of a module's input, over all of its experts.

    A missing, zero or infinite range is a Failure that names the module; experts that saw no token may borrow the
    largest range of their siblings when `uncalibrated` says so, NaN never.
    """
    found = ranges.inputs.get(module)
    if not found:
        raise Failure(f"the calibration has no range for the input of {module}", _RECALIBRATE, ExitCode.WORK_FAILED)
    _refuse_strange(found, module)
    seen = [value for value in found if value]
    missing = tuple(index for index, value in enumerate(found) if not value)
    if missing and len(found) == 1:
        raise Failure(
            f"the input of {module} was zero in the whole calibration",
            "give other calibration texts, or exclude the module (quantisation.exclude_modules)",
            ExitCode.WORK_FAILED,
        )
    if missing and (uncalibrated is UncalibratedExperts.FAIL or not seen):
        names = name_list([str(index) for index in missing])
        raise Failure(f"no calibration token reached the experts {names} of {module}", _MORE_TEXT, ExitCode.WORK_FAILED)
    return ActivationScale(scale_of(np.float32(max(seen)), f"the input of {module}"), missing)


def _refuse_strange(found: Sequence[float | None], module: str) -> None:
    strange = [index for index, value in enumerate(found) if value is not None and not (0 <= value < float("inf"))]
    if strange:
        which = f" (experts {name_list([str(index) for index in strange])})" if len(found) > 1 else ""
        raise Failure(
            f"the input of {module}{which} was no finite number in the calibration",
            "the model overflows: calibrate a bf16 model in bf16, or look at its weights",
            ExitCode.WORK_FAILED,
        )


def kv_scale(ranges: ActivationRanges, layer: int, wish: KvScale) -> np.float32:
    """The scale of a layer's FP8 keys and values: max(amax / 448, 1), as ModelOpt writes it, or 1 when asked for.

    A scale below 1 would only push small values through the same eight bits: E4M3 is a floating-point format.
    Failure when the calibration saw no keys or values.
    """
    if wish is KvScale.UNIT:
        return np.float32(1)
    if layer >= len(ranges.keys) or layer >= len(ranges.values):
        raise Failure(
            f"the calibration has no range for keys and values of layer {layer}", _RECALIBRATE, ExitCode.WORK_FAILED
        )
    scales = [
        scale_of(np.float32(value), f"the cached {word} of layer {layer}")
        for word, value in (("keys", ranges.keys[layer]), ("values", ranges.values[layer]))
    ]
    return np.float32(max(*scales, np.float32(1)))


def kv_notes(ranges: ActivationRanges | None, scales: Sequence[np.float32], wish: KvScale) -> tuple[str, ...]:
    """The distribution of KV scales in words, with a warning when every one is exactly 1."""
    low, high = min(scales), max(scales)
    middle = float(np.median(np.array(scales)))
    notes = [f"KV cache scales over {len(scales)} layers: {low:.6g} to {high:.6g}, median {middle:.6g}"]
    if wish is KvScale.UNIT:
        notes.append("KV cache scales are 1 because kv_scale is unit")
    elif low == high == 1:
        seen = f"keys up to {max(ranges.keys):.6g}, values up to {max(ranges.values):.6g}" if ranges else "as stored"
        notes.append(f"warning: every KV cache scale is exactly 1, uncalibrated or clamped; recorded: {seen}")
    return tuple(notes)


def ranges_json(ranges: ActivationRanges) -> dict[str, Json]:
    """The value that a calibration's file holds."""
    return {
        "format": RANGES_FORMAT,
        "samples": ranges.samples,
        "tokens": ranges.tokens,
        "inputs": {name: list(values) for name, values in sorted(ranges.inputs.items())},
        "keys": list(ranges.keys),
        "values": list(ranges.values),
    }


def ranges_of(document: Mapping[str, Json]) -> ActivationRanges:
    """The inverse of `ranges_json`; Failure when another version wrote the file or a value is of the wrong kind."""
    if document.get("format") != RANGES_FORMAT:
        raise Failure(
            f"the calibration has the format {document.get('format')!r}, this version reads {RANGES_FORMAT}",
            _RECALIBRATE,
            ExitCode.ENVIRONMENT,
        )
    inputs = document.get("inputs")
    if not isinstance(inputs, Mapping):
        raise _broken("inputs")
    return ActivationRanges(
        samples=_count(document, "samples"),
        tokens=_count(document, "tokens"),
        inputs={name: _numbers(values, name, gaps=True) for name, values in inputs.items()},
        keys=tuple(float(value or 0) for value in _numbers(document.get("keys"), "keys")),
        values=tuple(float(value or 0) for value in _numbers(document.get("values"), "values")),
    )


def _count(document: Mapping[str, Json], key: str) -> int:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _broken(key)
    return value


def _numbers(values: Json, key: str, gaps: bool = False) -> tuple[float | None, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _broken(key)
    found: list[float | None] = []
    for value in values:
        if value is None and gaps:
            found.append(None)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _broken(key)
        else:
            found.append(float(value))
    return tuple(found)


def _broken(key: str) -> Failure:
    return Failure(f"the calibration's {key} are not what they should be", _RECALIBRATE, ExitCode.ENVIRONMENT)
