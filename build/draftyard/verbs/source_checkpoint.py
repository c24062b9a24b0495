"""Shows a model directory as an unsharded checkpoint, made tensor by tensor when it is read and never written."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from draftyard.doors.tensors import open_weights
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.tensor import TensorHeader, TensorSpec, TensorType
from draftyard.rules.casting import cast
from draftyard.rules.families.family import Rule
from draftyard.rules.shards import checkpoint_name, shard
from draftyard.rules.trtllm import expected_tensors
from draftyard.verbs.rank_writing import Portion


class SourceCheckpoint:
    """Reads like the one rank file of a checkpoint. Memory is that of the tensors that the reader keeps."""

    def __init__(self, portion: Portion, config: Mapping[str, Json]) -> None:
        """`config` is that of a checkpoint with one rank; its `dtype` is what tensors are cast to."""
        self._portion = portion
        self._expected = expected_tensors(config, 0)
        rules = {checkpoint_name(rule, portion.network, 1, 0): rule for rule in portion.rules}
        self._rules = {name: rule for name, rule in rules.items() if name in self._expected}
        paths = {stored.directory / stored.header.file for stored in portion.stored.values()}
        stored_headers = [stored.header for stored in portion.stored.values()]
        self._files = {path: open_weights(path, stored_headers) for path in sorted(paths)}

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        """Headers by checkpoint name; they say nothing of a place in a file."""
        found = {}
        for name, (kind, shape) in self._expected.items():
            size_bytes = TensorSpec(name, kind, shape).size_bytes
            found[name] = TensorHeader(name, kind, shape, Path(name).name, 0, size_bytes)
        return found

    def read(self, name: str) -> memoryview:
        """The bytes of one tensor, made now; Failure when a value is no finite number, before or after the cast."""
        rule, (kind, shape) = self._rules[name], self._expected[name]
        parts = [self._part(rule, index, kind) for index in range(len(rule.parts))]
        piece = np.ascontiguousarray(shard(rule, parts, self._portion.network, 1, 0))
        if piece.shape != shape:
            raise ValueError(f"{name} has the shape {piece.shape}, expected {shape}")
        return memoryview(piece.reshape(-1).view(np.uint8).data)

    def _part(self, rule: Rule, index: int, kind: TensorType) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        stored = self._portion.stored[rule.parts[index].name]
        file = self._files[stored.directory / stored.header.file]
        # Read, not mapped: what a map has touched counts as this process's memory until somebody else needs it.
        data = memoryview(bytearray(stored.header.size_bytes))
        file.read_into(stored.header.name, 0, data)
        result = cast(data, stored.header.shape, stored.header.type, kind)
        if result.losses.not_finite or result.losses.overflows:
            raise Failure(
                f"{stored.header.name}: values are, or become in {kind}, infinite or NaN",
                "fetch the file again",
                ExitCode.WORK_FAILED,
            )
        return result.values
