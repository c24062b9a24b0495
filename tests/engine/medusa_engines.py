"""Makes engine directories with Medusa heads in the target's rank files, random or right by construction."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tests.engine.tiny_engines import DTYPES, Sizes, random_llama, write_engine
from transformers import LlamaForCausalLM

Choices = Sequence[Sequence[int]]
Head = Mapping[str, torch.Tensor]
DEFAULT_SIZES = Sizes()


def random_heads(count: int, layers: int = 1, hidden: int = 64, vocabulary: int = 96, seed: int = 5) -> list[Head]:
    """Heads with residual blocks of some size, biases included."""
    generator = torch.Generator().manual_seed(seed)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.2

    heads = []
    for _ in range(count):
        head = {"lm_head.weight": values(vocabulary, hidden)}
        for layer in range(layers):
            head[f"medusa_layers.{layer}.linear.weight"] = values(hidden, hidden)
            head[f"medusa_layers.{layer}.linear.bias"] = values(hidden)
        heads.append(head)
    return heads


def write_medusa_engine(
    directory: Path,
    model: LlamaForCausalLM,
    heads: Sequence[Head],
    choices: Choices,
    *,
    sizes: Sizes = DEFAULT_SIZES,
    dtype: torch.dtype = torch.float32,
    tp_size: int = 1,
    pp_size: int = 1,
    block: Mapping[str, object] | None = None,
) -> Path:
    """A merged `MedusaForCausalLM` checkpoint as an engine; each rank, of all stages, holds its part of the heads.

    `block` overrides keys of the engine's speculator block.
    """
    layers = len({name for name in heads[0] if name.endswith("linear.weight")})
    speculator = {"kind": "medusa", "max_draft_len": len(choices), "heads": len(heads), "choices": list(choices)}
    names = {"architecture": "MedusaForCausalLM", "num_medusa_heads": len(heads), "num_medusa_layers": layers}
    write_engine(
        directory,
        model,
        speculator={**speculator, **(block or {})},
        sizes=sizes,
        dtype=dtype,
        tp_size=tp_size,
        pp_size=pp_size,
        pretrained=names,
    )
    assert dtype in DTYPES
    for rank in range(tp_size * pp_size):
        path = directory / f"rank{rank}.safetensors"
        merged = load_file(path)
        for number, head in enumerate(heads):
            for name, value in head.items():
                part = value.chunk(tp_size)[rank % tp_size]
                merged[f"medusa_heads.{number}.{name}"] = part.to(dtype).contiguous().clone()
        save_file(merged, path)
    return directory


def cycling_llama(step: int = 7, size: int = 64) -> LlamaForCausalLM:
    """A target whose next token is always the last one + `step`, modulo `size`: its layers add nothing."""
    model = random_llama(vocab_size=size, hidden_size=size)
    model.model.embed_tokens.weight.data = torch.eye(size)
    model.model.norm.weight.data.fill_(1.0)
    model.lm_head.weight.data = shifted_head(step, size)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    return model


def shifted_head(step: int, size: int = 64) -> torch.Tensor:
    """The projection [vocabulary, hidden] that turns the one-hot state of token t into token t + step."""
    return torch.eye(size).roll(step, dims=0)


def right_heads(count: int, step: int = 7, size: int = 64) -> list[Head]:
    """Heads of `cycling_llama` that are always right: blocks that add nothing, and a projection further on each."""
    blank = {
        "medusa_layers.0.linear.weight": torch.zeros(size, size),
        "medusa_layers.0.linear.bias": torch.zeros(size),
    }
    return [{**blank, "lm_head.weight": shifted_head((head + 2) * step, size)} for head in range(count)]


def full_tree(*widths: int) -> list[list[int]]:
    """Choices of a tree where every node of level i has `widths[i]` children."""
    level: list[list[int]] = [[]]
    choices: list[list[int]] = []
    for width in widths:
        level = [[*path, rank] for path in level for rank in range(width)]
        choices.extend(level)
    return choices
