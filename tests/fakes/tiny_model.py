"""Writes model directories small enough to read by eye: random weights, a tokenizer of a few words."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from draftyard.rules.families.family import source_tensors
from draftyard.rules.families.known_families import FAMILIES

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
ARCHITECTURES = {family.model_type: family.architecture for family in FAMILIES.values()}


def config_of(model_type: str = "llama", **changes: object) -> dict[str, object]:
    """A valid config; None removes a key."""
    config = {**CONFIG, "model_type": model_type, "architectures": [ARCHITECTURES[model_type]], **changes}
    if model_type == "qwen3":
        config.setdefault("head_dim", 8)
    if model_type == "mixtral":
        config = {"num_local_experts": 3, "num_experts_per_tok": 2, **config}
    return {key: value for key, value in config.items() if value is not None}


def random_weights(config: Mapping[str, object], seed: int = 0) -> dict[str, np.ndarray]:
    """float32 weights with the names and shapes that the config asks for."""
    family = FAMILIES[str(config["model_type"])]
    network = family.resolve(config).network
    assert network is not None
    generator = np.random.default_rng(seed)
    table = source_tensors(family.rules(network))
    return {name: generator.standard_normal(shape, dtype=np.float32) * 0.1 for name, shape in table.items()}


def write_tokenizer(
    directory: Path, words: int = 45, changes: Mapping[int, str] | None = None, adds_bos: bool = False
) -> None:
    """A word-level tokenizer of `words` + 3 special tokens; `changes` gives some ids another text."""
    texts = ["<unk>", "<s>", "</s>", "a", *(f"w{index}" for index in range(4, words + 3))]
    for index, text in (changes or {}).items():
        texts[index] = text
    tokenizer = Tokenizer(models.WordLevel({text: index for index, text in enumerate(texts)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages[0]['content'] }}"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def write_model(
    directory: Path, config: Mapping[str, object] | None = None, weights: Mapping[str, np.ndarray] | None = None
) -> Path:
    """A whole model directory with one safetensors file."""
    directory.mkdir(parents=True, exist_ok=True)
    config = config_of() if config is None else config
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3], "bos_token_id": 1}))
    save_file(dict(random_weights(config) if weights is None else weights), directory / "model.safetensors")
    write_tokenizer(directory)
    return directory


def split_model(directory: Path, weights: Mapping[str, np.ndarray], shards: int = 2) -> dict[str, str]:
    """Replace the single file by shards and their index; returns the index's map."""
    (directory / "model.safetensors").unlink(missing_ok=True)
    where: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: value for place, (key, value) in enumerate(sorted(weights.items())) if place % shards == shard}
        save_file(part, directory / name)
        where.update(dict.fromkeys(part, name))
    write_index(directory, where)
    return where


def write_index(directory: Path, where: Mapping[str, str]) -> None:
    """The index file that says which tensor is where."""
    document = {"metadata": {}, "weight_map": dict(where)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(document))
