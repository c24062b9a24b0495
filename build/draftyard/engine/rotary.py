"""Rotary position angles, with the scalings of Llama 3.1, linear, dynamic and YaRN."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from draftyard.engine.configuration import DecoderShape
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure


def pair_order(head_size: int) -> Tensor:
    """Order of a head's rows that puts both halves of each rotated pair side by side.

    Checkpoints keep pair i in rows i and i + head_size / 2 (GPT-NeoX); queries and keys that are reordered alike have
    the same products.
    """
    return torch.arange(head_size).view(2, -1).t().reshape(-1)


def rotary_table(shape: DecoderShape, positions: int, device: torch.device) -> Tensor:
    """Complex numbers [positions, head_size / 2]: position p turns pair i by p times frequency i.

    Su et al., "RoFormer"; scalings as in Hugging Face transformers 5 `modeling_rope_utils` for the same key names.
    `dynamic` changes nothing up to the trained length and is refused beyond it, where the angles of a token would
    depend on how many follow.
    """
    kind = str(shape.rotary_scaling.get("rope_type", shape.rotary_scaling.get("type", "default")))
    base, factor = shape.rotary_base, _number(shape.rotary_scaling, "factor", 1.0)
    dimensions = shape.head_size
    if kind == "dynamic" and positions > shape.max_positions:
        raise Failure(
            f"dynamic rotary scaling is executed up to {shape.max_positions} positions, the engine has {positions}",
            "build with a smaller max_seq_len",
        )
    frequencies = base ** -(torch.arange(0, dimensions, 2, dtype=torch.float32) / dimensions)
    scale = 1.0
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "llama3":
        frequencies = _llama3(frequencies, shape.rotary_scaling)
    elif kind == "yarn":
        frequencies, scale = _yarn(frequencies, shape)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.polar(torch.full_like(angles, scale), angles).to(device)


def _llama3(frequencies: Tensor, scaling: Mapping[str, Json]) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between are blended (Llama 3.1)."""
    factor, original = _number(scaling, "factor", 8.0), _number(scaling, "original_max_position_embeddings", 8192)
    low, high = _number(scaling, "low_freq_factor", 1.0), _number(scaling, "high_freq_factor", 4.0)
    wavelengths = 2 * math.pi / frequencies
    blend = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / factor + blend * frequencies


def _yarn(frequencies: Tensor, shape: DecoderShape) -> tuple[Tensor, float]:
    """Peng et al., "YaRN": interpolate slow dimensions, keep fast ones, and scale attention by 0.1 ln(s) + 1."""
    scaling, dimensions = shape.rotary_scaling, shape.head_size
    factor = _number(scaling, "factor", 1.0)
    original = _number(scaling, "original_max_position_embeddings", float(shape.max_positions))

    def dimension_of(rotations: float) -> float:
        return dimensions * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(shape.rotary_base))

    low = max(math.floor(dimension_of(_number(scaling, "beta_fast", 32.0))), 0)
    high = min(math.ceil(dimension_of(_number(scaling, "beta_slow", 1.0))), dimensions - 1)
    ramp = ((torch.arange(dimensions // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    attention = _number(scaling, "attention_factor", 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return frequencies / factor * ramp + frequencies * (1 - ramp), attention


def _number(scaling: Mapping[str, Json], name: str, default: float) -> float:
    value = scaling.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default
