"""Writes directories of speculators in the layouts of their authors: random weights, settings as they are published."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

Weights = dict[str, np.ndarray]

# The settings of a decoder layer that goes with the tiny target of tests.fakes.tiny_model.
LAYER_CONFIG: dict[str, object] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}


def layer_config(**changes: object) -> dict[str, object]:
    """Settings of one layer; None removes a key."""
    return {key: value for key, value in {**LAYER_CONFIG, **changes}.items() if value is not None}


def random_arrays(shapes: Mapping[str, tuple[int, ...]], seed: int = 5) -> Weights:
    """float32 arrays of these shapes; norms lie around one."""
    generator = np.random.default_rng(seed)
    made = {name: generator.standard_normal(shape, dtype=np.float32) * 0.1 for name, shape in shapes.items()}
    return {name: value + 1 if "norm" in name else value for name, value in made.items()}


def layer_shapes(prefix: str, config: Mapping[str, object], width: int | None = None) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer without its first norm; attention takes `width` values."""
    hidden, inner = int(str(config["hidden_size"])), int(str(config["intermediate_size"]))
    heads, kv_heads = int(str(config["num_attention_heads"])), int(str(config["num_key_value_heads"]))
    size = int(str(config.get("head_dim", hidden // heads)))
    taken = width or hidden
    return {
        f"{prefix}.self_attn.q_proj.weight": (heads * size, taken),
        f"{prefix}.self_attn.k_proj.weight": (kv_heads * size, taken),
        f"{prefix}.self_attn.v_proj.weight": (kv_heads * size, taken),
        f"{prefix}.self_attn.o_proj.weight": (hidden, heads * size),
        f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
        f"{prefix}.mlp.up_proj.weight": (inner, hidden),
        f"{prefix}.mlp.down_proj.weight": (hidden, inner),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
    }


def medusa_weights(
    heads: int = 3, blocks: int = 1, hidden: int = 32, vocabulary: int | None = None, prefix: str = ""
) -> Weights:
    """Heads of residual blocks; with a `vocabulary` each has a projection of its own."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            shapes[f"{prefix}{head}.{block}.linear.weight"] = (hidden, hidden)
            shapes[f"{prefix}{head}.{block}.linear.bias"] = (hidden,)
        if vocabulary is not None:
            shapes[f"{prefix}{head}.{blocks}.weight"] = (vocabulary, hidden)
    return random_arrays(shapes)


def eagle_weights(
    config: Mapping[str, object] = LAYER_CONFIG, *, bias: bool = True, embedding: bool = True, layers: int = 1
) -> Weights:
    """EAGLE-1 as its authors store it: no norm before the first layer, none at the end, no head."""
    hidden, rows = int(str(config["hidden_size"])), int(str(config["vocab_size"]))
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, 2 * hidden)}
    if bias:
        shapes["fc.bias"] = (hidden,)
    if embedding:
        shapes["embed_tokens.weight"] = (rows, hidden)
    for layer in range(layers):
        shapes |= layer_shapes(f"layers.{layer}", config)
        if layer:
            shapes[f"layers.{layer}.input_layernorm.weight"] = (hidden,)
    return random_arrays(shapes)


def eagle3_weights(
    config: Mapping[str, object] = LAYER_CONFIG,
    *,
    target_hidden: int = 32,
    draft_rows: int | None = 20,
    embedding: bool = False,
    layer: str = "midlayer",
) -> Weights:
    """EAGLE-3 as its authors store it; with `draft_rows` a head, and a map when it has fewer rows than the target."""
    hidden, rows = int(str(config["hidden_size"])), int(str(config["vocab_size"]))
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, 3 * target_hidden), "norm.weight": (hidden,)}
    shapes |= layer_shapes(layer, config, 2 * hidden)
    shapes |= {f"{layer}.input_layernorm.weight": (hidden,), f"{layer}.hidden_norm.weight": (hidden,)}
    if embedding:
        shapes["embed_tokens.weight"] = (rows, hidden)
    if draft_rows is not None:
        shapes["lm_head.weight"] = (draft_rows, hidden)
    weights = random_arrays(shapes)
    if draft_rows is not None and draft_rows < rows:
        weights |= vocabulary_map(draft_rows, rows)
    return weights


def vocabulary_map(draft_rows: int, rows: int) -> Weights:
    """d2t and t2d of every second id from 1 on, as far as they reach, then the ids left over from the start."""
    ids = [*range(1, rows, 2), *range(0, rows, 2)][:draft_rows]
    ids.sort()
    marks = np.zeros(rows, dtype=np.bool_)
    marks[ids] = True
    return {"d2t": np.array(ids, dtype=np.int64) - np.arange(draft_rows), "t2d": marks}


def mtp_weights(
    config: Mapping[str, object] = LAYER_CONFIG, *, number: int = 3, head: bool = False, embedding: bool = False
) -> Weights:
    """An MTP module as it lies behind the target's own layers."""
    hidden, rows = int(str(config["hidden_size"])), int(str(config["vocab_size"]))
    prefix = f"model.layers.{number}"
    shapes = {
        **{f"{prefix}.{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm", "input_layernorm")},
        f"{prefix}.eh_proj.weight": (hidden, 2 * hidden),
        **layer_shapes(prefix, config),
    }
    if head:
        shapes[f"{prefix}.shared_head.head.weight"] = (rows, hidden)
    if embedding:
        shapes[f"{prefix}.embed_tokens.weight"] = (rows, hidden)
    return random_arrays(shapes)


def write_speculator(
    directory: Path,
    weights: Mapping[str, np.ndarray],
    config: Mapping[str, object] | None = None,
    file: str = "model.safetensors",
) -> Path:
    """A speculator's directory; without a config there is no config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    save_file(dict(weights), directory / file)
    return directory


RECIPE = """version: 1
name: heads
target: {{path: target, tp_size: {tp_size}, pp_size: {pp_size}}}
speculators: [{speculators}]
lanes: [reference]
gpus: [cpu]
precisions: [{precision}]
limits: {{max_batch_size: 2, max_input_len: 32, max_seq_len: 64, max_num_tokens: 64}}
verify: {{prompts: prompts, concurrency: [1, 2]}}
"""


def write_heads_recipe(
    root: Path, *speculators: str, tp_size: int = 1, pp_size: int = 1, precision: str = "fp32"
) -> Path:
    """The recipe `root`/recipe.yaml for the model `root`/target with these speculators, each a YAML mapping."""
    text = RECIPE.format(speculators=", ".join(speculators), tp_size=tp_size, pp_size=pp_size, precision=precision)
    path = root / "recipe.yaml"
    path.write_text(text)
    return path
