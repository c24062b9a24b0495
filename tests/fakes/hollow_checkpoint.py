"""Checkpoints of the right names, shapes and sizes whose weights are holes in their files."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from draftyard.nouns.digest import Json
from draftyard.rules.trtllm import expected_tensors, world_size


def write_hollow_checkpoint(directory: Path, config: Mapping[str, Json]) -> Path:
    """`config.json` and one file a rank; whatever their size, they take a few blocks of the disk."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    for rank in range(world_size(config)):
        header: dict[str, object] = {}
        offset = 0
        for name, (kind, shape) in expected_tensors(config, rank).items():
            size = kind.item_bytes
            for extent in shape:
                size *= extent
            header[name] = {"dtype": kind.value, "shape": list(shape), "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header).encode()
        with (directory / f"rank{rank}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + offset)
    return directory
