"""Takes over the scales of a model that is FP8 already."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from draftyard.doors.tensors import MappedTensorFile, open_weights
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.recipe import KvScale
from draftyard.nouns.tensor import TensorType
from draftyard.rules.casting import cast
from draftyard.rules.families.family import Part, Rule
from draftyard.rules.float8 import Quantiser
from draftyard.rules.fp8_scales import kv_notes
from draftyard.rules.stored_fp8 import INPUT_SCALE, KEY_SCALES, VALUE_SCALES, WEIGHT_SCALE
from draftyard.verbs.fp8_conversion import Fp8Wishes, ScaleArray, parts_by_expert
from draftyard.verbs.rank_writing import Portion

_FETCH = "fetch the file again; if it is as its maker saved it, the model is broken"


class StoredScales:
    """Scales beside FP8 weights. Where several share one it is the largest, and the others are quantised anew.

    That is what TensorRT-LLM's loader does with q, k and v of such models, and its builder with the two halves of a
    gated feed-forward.
    """

    def __init__(self, portion: Portion, wishes: Fp8Wishes) -> None:
        self._stored = portion.stored
        self._wishes = wishes
        self._files: dict[Path, MappedTensorFile] = {}
        self._cached: list[np.float32] = []
        self._merged = 0

    def weight_scales(self, rule: Rule, siblings: tuple[Part, ...]) -> ScaleArray:
        """The largest of each group."""
        groups = [self._scales((*parts, *siblings), WEIGHT_SCALE) for parts in parts_by_expert(rule)]
        return np.array([max(group) for group in groups], dtype=np.float32)

    def activation_scale(self, rule: Rule, siblings: tuple[Part, ...]) -> np.float32:
        """The largest over all parts, experts and siblings."""
        return max(self._scales((*rule.parts, *siblings), INPUT_SCALE))

    def quantiser(self, part: Part, scale: np.float32) -> Quantiser:
        """The bytes as they are, or under the larger scale."""
        (own,) = self._scales((part,), WEIGHT_SCALE)
        self._merged += own != scale
        return Quantiser(TensorType.F8_E4M3, scale, own)

    def cache_scale(self, layer: int) -> np.float32:
        """The larger of keys' and values', not below 1 (as for calibrated ones); 1 when that is asked for."""
        if self._wishes.kv_scale is KvScale.UNIT:
            self._cached.append(np.float32(1))
            return self._cached[-1]
        attention = f"model.layers.{layer}.self_attn"
        found = [
            self._scale(f"{attention}.{ending}")
            for endings in (KEY_SCALES, VALUE_SCALES)
            for ending in endings
            if f"{attention}.{ending}" in self._stored
        ]
        if len(found) != 2:
            raise Failure(
                f"the model has no scales of keys and values for layer {layer}",
                "set quantisation.kv_cache to none, or kv_scale to unit",
                ExitCode.WORK_FAILED,
            )
        self._cached.append(max(*found, np.float32(1)))
        return self._cached[-1]

    def notes(self) -> tuple[str, ...]:
        """How many tensors got another scale, how cache scales are distributed."""
        notes = [f"FP8 weights taken over, {self._merged} tensors quantised anew under a scale they share"]
        if self._cached:
            notes.extend(kv_notes(None, self._cached, self._wishes.kv_scale))
        return tuple(notes)

    def _scales(self, parts: Iterable[Part], ending: str) -> list[np.float32]:
        return [self._scale(f"{part.name.removesuffix('weight')}{ending}") for part in parts]

    def _scale(self, name: str) -> np.float32:
        stored = self._stored[name]
        path = stored.directory / stored.header.file
        if path not in self._files:
            self._files[path] = open_weights(path, [one.header for one in self._stored.values()])
        data = self._files[path].read(stored.header.name)
        value = np.float32(cast(data, (1,), stored.header.type, TensorType.F32).values[0])
        if not np.isfinite(value) or value <= 0:
            raise Failure(f"{name} is {value}", _FETCH, ExitCode.WORK_FAILED)
        return value
