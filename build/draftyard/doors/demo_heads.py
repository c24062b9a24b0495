"""Makes the directories of the demo's Medusa and EAGLE heads out of their committed weights and the target's head."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from draftyard.doors.demo_artifact import float32_of_bfloat16, write_json
from draftyard.doors.demo_trained import materialise
from draftyard.doors.tensors import TensorWriter, open_tensor_file
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure
from draftyard.nouns.tensor import TensorHeader, TensorSpec, TensorType

# Raise it when config or arithmetic change, so that directories made before are made again.
LAYOUT = "1"

_EMBEDDING = "model.embed_tokens.weight"
_HEAD, _MAP = "lm_head.weight", "d2t"
_KEPT_KEYS = (
    "head_dim",
    "hidden_act",
    "hidden_size",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_theta",
    "vocab_size",
)


def materialise_medusa(target: Path, trained: Path, directory: Path) -> dict[str, str]:
    """Write the Medusa heads to `directory`; SHA-256 by file name. Failures as for `demo_trained.materialise`."""
    return materialise(target, trained, directory, LAYOUT, write_medusa)


def materialise_eagle(target: Path, trained: Path, directory: Path) -> dict[str, str]:
    """Write the EAGLE head to `directory`; SHA-256 by file name. Failures as for `demo_trained.materialise`."""
    return materialise(target, trained, directory, LAYOUT, write_eagle)


def write_medusa(target: Path, weights: Path, directory: Path) -> None:
    """Write config and weights (`{head}.{block}.linear.*`, the layout of FasterDecoding's heads) into `directory`."""
    config = _target_config(target)
    write_json(directory / "config.json", medusa_config(config, open_tensor_file(weights).headers))
    shutil.copyfile(weights, directory / "model.safetensors")


def medusa_config(target: Mapping[str, Json], trained: Mapping[str, TensorHeader]) -> dict[str, Json]:
    """`config.json` of the heads, whose counts the trained tensors show."""
    found = [tuple(map(int, match.groups())) for name in trained if (match := re.match(r"(\d+)\.(\d+)\.", name))]
    return {
        "base_model_name_or_path": "SmolLM2-135M-Instruct",
        "hidden_size": target["hidden_size"],
        "medusa_num_heads": max(head for head, _ in found) + 1,
        "medusa_num_layers": max(block for _, block in found) + 1,
        "vocab_size": target["vocab_size"],
    }


def write_eagle(target: Path, weights: Path, directory: Path) -> None:
    """Write config and weights (the layout of SafeAILab's EAGLE heads) into `directory`.

    The head's rows are the target's, those that `d2t` names: the draft vocabulary is a part of the target's.
    """
    trained, base = open_tensor_file(weights), open_tensor_file(target / "model.safetensors")
    headers = trained.headers
    drafted = np.frombuffer(trained.read(_MAP), dtype="<i8")
    embedding = base.headers[_EMBEDDING]
    ids = drafted + np.arange(len(drafted))
    if ids.min() < 0 or ids.max() >= embedding.shape[0]:
        raise Failure(f"{_MAP} leads outside the target's {embedding.shape[0]} tokens", "train it for this target")
    write_json(directory / "config.json", eagle_config(_target_config(target), headers))
    specs = [TensorSpec(name, header.type, header.shape) for name, header in headers.items()]
    specs.append(TensorSpec(_HEAD, TensorType.F16, (len(ids), embedding.shape[1])))
    rows = float32_of_bfloat16(base.read(_EMBEDDING), embedding.shape)[ids].astype("<f2")
    with TensorWriter(directory / "model.safetensors", specs, {"format": "pt"}) as writer:
        for name in headers:
            writer.write(name, trained.read(name))
        writer.write(_HEAD, rows.data.cast("B"))


def eagle_config(target: Mapping[str, Json], trained: Mapping[str, TensorHeader]) -> dict[str, Json]:
    """`config.json` of the head: sizes of its one layer, which are the target's or shown by the trained tensors."""
    kept = {key: target[key] for key in _KEPT_KEYS if key in target}
    layers = {match[1] for name in trained if (match := re.match(r"layers\.(\d+)\.", name))}
    return {
        **kept,
        "architectures": ["LlamaForCausalLM"],
        "bias": "fc.bias" in trained,
        "draft_vocab_size": trained[_MAP].shape[0],
        "intermediate_size": trained["layers.0.mlp.gate_proj.weight"].shape[0],
        "num_hidden_layers": len(layers),
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }


def _target_config(target: Path) -> dict[str, Json]:
    document: dict[str, Json] = json.loads((target / "config.json").read_text(encoding="utf-8"))
    return document
