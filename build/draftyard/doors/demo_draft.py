"""Makes the demo draft's model directory out of its small committed weights and the target's embedding."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftyard.doors.demo_artifact import bfloat16_bytes, float32_of_bfloat16, write_json
from draftyard.doors.demo_tokenizer import TOKENIZER_FILES
from draftyard.doors.demo_trained import materialise
from draftyard.doors.tensors import TensorWriter, open_tensor_file
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure
from draftyard.nouns.tensor import TensorFile, TensorHeader, TensorSpec, TensorType

HEAD_DIM = 64
# Raise this when config or arithmetic change, so that directories made before are made again.
LAYOUT = "1"

_EMBEDDING = "model.embed_tokens.weight"
_PROJECTED = {_EMBEDDING: "project_in", "lm_head.weight": "project_out"}
# Both factors of the projections are rounded to these grids; every product and partial sum is then a multiple of
# 2**-38 below 2**15, which float64 holds exactly: the result is the same on every machine, in any order of adding.
_EMBEDDING_GRID = 2.0**20
_PROJECTION_GRID = 2.0**18
_EXACT_BELOW = 2.0**15
_ROWS_AT_ONCE = 4096


def materialise_draft(target: Path, trained: Path, directory: Path) -> dict[str, str]:
    """Write the draft to `directory` and return SHA-256 by file name. Failures as for `demo_trained.materialise`.

    `target` is the materialised target, whose embedding and tokenizer the draft shares; `trained` holds
    weights.safetensors and receipt.json.
    """
    return materialise(target, trained, directory, LAYOUT, write_draft)


def write_draft(target: Path, weights: Path, directory: Path) -> None:
    """Write config, tokenizer and bfloat16 weights of the draft into `directory`."""
    trained = open_tensor_file(weights)
    base = open_tensor_file(target / "model.safetensors")
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    write_json(directory / "config.json", config_document(config, trained.headers))
    for name in (*TOKENIZER_FILES, "generation_config.json"):
        shutil.copyfile(target / name, directory / name)
    specs = [TensorSpec(name, TensorType.BF16, shape) for name, shape in _shapes(base, trained).items()]
    embedding = _floats(base, _EMBEDDING)
    with TensorWriter(directory / "model.safetensors", specs, {"format": "pt"}) as writer:
        for name in trained.headers:
            if name not in _PROJECTED.values():
                writer.write(f"model.{name}", bfloat16_bytes(_floats(trained, name)))
        for name, projection in _PROJECTED.items():
            writer.write(name, bfloat16_bytes(projected(embedding, _floats(trained, projection))))


def projected(embedding: NDArray[np.float32], projection: NDArray[np.float32]) -> NDArray[np.float32]:
    """embedding [vocabulary, hidden] @ projection [hidden, width], bit-equal on every machine.

    ValueError when the values are too large for the arithmetic to be exact.
    """
    if np.abs(embedding).max() * np.abs(projection).max() * len(projection) >= _EXACT_BELOW:
        raise ValueError("the projections are too large to be multiplied exactly")
    factor = np.rint(projection.astype(np.float64) * _PROJECTION_GRID) / _PROJECTION_GRID
    result = np.empty((len(embedding), projection.shape[1]), dtype=np.float32)
    for start in range(0, len(embedding), _ROWS_AT_ONCE):
        rows = embedding[start : start + _ROWS_AT_ONCE].astype(np.float64)
        rows = np.rint(rows * _EMBEDDING_GRID) / _EMBEDDING_GRID
        result[start : start + _ROWS_AT_ONCE] = rows @ factor
    return result


def config_document(target: Mapping[str, Json], trained: Mapping[str, TensorHeader]) -> dict[str, Json]:
    """`config.json` of the draft: the target's, with the sizes that the trained weights show and an untied head."""
    layers = [int(match[1]) for name in trained if (match := re.match(r"layers\.(\d+)\.", name))]
    sizes: dict[str, Json] = {
        "hidden_size": trained["project_in"].shape[1],
        "intermediate_size": trained["layers.0.mlp.gate_proj.weight"].shape[0],
        "num_attention_heads": trained["layers.0.self_attn.q_proj.weight"].shape[0] // HEAD_DIM,
        "num_hidden_layers": max(layers) + 1,
        "num_key_value_heads": trained["layers.0.self_attn.k_proj.weight"].shape[0] // HEAD_DIM,
        "head_dim": HEAD_DIM,
        "tie_word_embeddings": False,
    }
    return {**target, **sizes}


def _shapes(base: TensorFile, trained: TensorFile) -> dict[str, tuple[int, ...]]:
    vocabulary = base.headers[_EMBEDDING].shape[0]
    shapes = {f"model.{name}": header.shape for name, header in trained.headers.items()}
    for name, projection in _PROJECTED.items():
        del shapes[f"model.{projection}"]
        shapes[name] = (vocabulary, trained.headers[projection].shape[1])
    return shapes


def _floats(file: TensorFile, name: str) -> NDArray[np.float32]:
    header = file.headers[name]
    data = file.read(name)
    if header.type is TensorType.BF16:
        return float32_of_bfloat16(data, header.shape)
    if header.type is TensorType.F32:
        return np.frombuffer(data, dtype="<f4").reshape(header.shape)
    raise Failure(f"{name} is {header.type}, expected F32 or BF16", "train the draft with engines/demo/train_draft.py")
