"""Rotary position angles, with the scalings of Llama 3.1, linear, dynamic and YaRN."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from draftyard.engine.configuration import DecoderShape
from draftyard.nouns.digest import Json


def rotary_table(shape: DecoderShape, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [positions, head_size], for the halves layout of GPT-NeoX.

    Su et al., "RoFormer"; scalings as in Hugging Face transformers 5 `modeling_rope_utils` for the same key names.
    """
    kind = str(shape.rotary_scaling.get("rope_type", shape.rotary_scaling.get("type", "default")))
    base, factor = shape.rotary_base, _number(shape.rotary_scaling, "factor", 1.0)
    dimensions = shape.head_size
    if kind == "dynamic" and positions > shape.max_positions:
        ratio = factor * positions / shape.max_positions - (factor - 1)
        base *= ratio ** (dimensions / (dimensions - 2))
    frequencies = base ** -(torch.arange(0, dimensions, 2, dtype=torch.float32) / dimensions)
    scale = 1.0
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "llama3":
        frequencies = _llama3(frequencies, shape.rotary_scaling)
    elif kind == "yarn":
        frequencies, scale = _yarn(frequencies, shape)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    both = torch.cat((angles, angles), dim=-1)
    return (both.cos() * scale).to(device), (both.sin() * scale).to(device)


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
