"""Writes random Llama checkpoints of many gigabytes, fast: one block of random weights, again and again."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models

from draftyard.doors.tensors import TensorWriter
from draftyard.nouns.tensor import TensorSpec, TensorType
from draftyard.rules.families.family import source_tensors
from draftyard.rules.families.known_families import FAMILIES

SHARD_BYTES = 4 * 10**9
BLOCK_BYTES = 32 * 1024 * 1024


def llama_config(size_bytes: int) -> dict[str, object]:
    """Layers of Llama 3 8B (smaller ones below 6 GB), as many as come nearest to the size in bfloat16."""
    big = size_bytes >= 6 * 10**9
    hidden, inner, vocabulary = (4096, 14336, 128256) if big else (2048, 7168, 32000)
    heads, kv_heads = hidden // 128, hidden // 512
    layer = 2 * hidden * hidden + 2 * hidden * kv_heads * 128 + 3 * hidden * inner
    layers = max(1, round((size_bytes / 2 - 2 * vocabulary * hidden) / layer))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def write_checkpoint(directory: Path, size_bytes: int) -> int:
    """A whole model directory in bfloat16, several shards; returns the bytes of all tensors."""
    directory.mkdir(parents=True)
    config = llama_config(size_bytes)
    (directory / "config.json").write_text(json.dumps(config))
    _write_tokenizer(directory)
    network = FAMILIES["llama"].resolve(config).network  # type: ignore[arg-type]
    assert network is not None
    table = source_tensors(FAMILIES["llama"].rules(network))
    specs = [TensorSpec(name, TensorType.BF16, shape) for name, shape in sorted(table.items())]
    block = memoryview(_random_block())
    where: dict[str, str] = {}
    shards = _shards(specs)
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        where |= {spec.name: name for spec in shard}
        with TensorWriter(directory / name, shard, {"format": "pt"}) as writer:
            for spec in shard:
                for at in range(0, spec.size_bytes, BLOCK_BYTES):
                    writer.write_at(spec.name, at, block[: min(BLOCK_BYTES, spec.size_bytes - at)])
    total = sum(spec.size_bytes for spec in specs)
    index: Mapping[str, object] = {"metadata": {"total_size": total}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _shards(specs: list[TensorSpec]) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = [[]]
    for spec in specs:
        if sum(one.size_bytes for one in shards[-1]) + spec.size_bytes > SHARD_BYTES and shards[-1]:
            shards.append([])
        shards[-1].append(spec)
    return shards


def _random_block() -> bytes:
    """Normal values of the spread that trained weights have; about one in 400 is subnormal in float16."""
    values = np.random.default_rng(0).standard_normal(BLOCK_BYTES // 2, dtype=np.float32) * 0.02
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).tobytes()


def _write_tokenizer(directory: Path) -> None:
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}
    Tokenizer(models.WordLevel(words, unk_token="<unk>")).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
