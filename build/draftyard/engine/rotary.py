"""Rotary position angles, with the scalings of Llama 3.1, linear, dynamic, YaRN and LongRoPE."""

import math
from collections.abc import Mapping, Sequence

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


def rotary_limit(shape: DecoderShape) -> int | None:
    """Most tokens of a sequence for which the angles are those of the model; None when there is no such bound."""
    kind = _kind(shape)
    if kind == "dynamic":
        return shape.max_positions
    if kind == "longrope":
        return int(_number(shape.rotary_scaling, "original_max_position_embeddings", shape.max_positions))
    return None


def rotary_table(shape: DecoderShape, positions: int, device: torch.device) -> Tensor:
    """Complex numbers [positions, head_size / 2]: position p turns pair i by p times frequency i.

    Su et al., "RoFormer"; scalings as in Hugging Face transformers 5 `modeling_rope_utils` for the same key names.
    `dynamic` changes nothing up to the trained length; `longrope` uses its short factors up to the original. Beyond,
    the angles of a token depend on how many follow, which is refused (`rotary_limit`).
    """
    kind = _kind(shape)
    base, factor = shape.rotary_base, _number(shape.rotary_scaling, "factor", 1.0)
    dimensions = shape.head_size
    frequencies = base ** -(torch.arange(0, dimensions, 2, dtype=torch.float32) / dimensions)
    scale = 1.0
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "llama3":
        frequencies = _llama3(frequencies, shape.rotary_scaling)
    elif kind == "yarn":
        frequencies, scale = _yarn(frequencies, shape)
    elif kind == "longrope":
        frequencies, scale = _longrope(frequencies, shape)
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
    """Peng et al., "YaRN": interpolate slow dimensions, keep fast ones, and scale attention by 0.1 ln(s) + 1.

    `mscale` and `mscale_all_dim` count only together (transformers), their ratio then replaces that scale;
    `attention_factor` replaces either. `truncate` false leaves the ends of the ramp between whole dimensions.
    """
    scaling, dimensions = shape.rotary_scaling, shape.head_size
    factor = _number(scaling, "factor", 1.0)
    original = _number(scaling, "original_max_position_embeddings", float(shape.max_positions))

    def dimension_of(rotations: float) -> float:
        return dimensions * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(shape.rotary_base))

    def stretch(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    low, high = dimension_of(_number(scaling, "beta_fast", 32.0)), dimension_of(_number(scaling, "beta_slow", 1.0))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dimensions - 1)
    ramp = ((torch.arange(dimensions // 2) - low) / (high - low or 0.001)).clamp(0, 1)
    mscale, mscale_all = _number(scaling, "mscale", 0.0), _number(scaling, "mscale_all_dim", 0.0)
    attention = stretch(mscale) / stretch(mscale_all) if mscale and mscale_all else stretch(1.0)
    blended = frequencies / factor * ramp + frequencies * (1 - ramp)
    return blended, _number(scaling, "attention_factor", attention)


def _longrope(frequencies: Tensor, shape: DecoderShape) -> tuple[Tensor, float]:
    """Ding et al., "LongRoPE": a factor for each pair; attention grows by sqrt(1 + ln(s) / ln(original length)).

    s is `factor`, or the trained length over the original one (transformers).
    """
    scaling, original = shape.rotary_scaling, rotary_limit(shape)
    factors = scaling.get("short_factor")
    if original is None or not isinstance(factors, Sequence) or isinstance(factors, str):
        raise Failure("longrope needs short_factor and original_max_position_embeddings", "build the checkpoint again")
    ratio = _number(scaling, "factor", shape.max_positions / original)
    attention = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    shares = torch.tensor([float(str(one)) for one in factors])
    return frequencies / shares, _number(scaling, "attention_factor", attention)


def _kind(shape: DecoderShape) -> str:
    return str(shape.rotary_scaling.get("rope_type", shape.rotary_scaling.get("type", "default")))


def _number(scaling: Mapping[str, Json], name: str, default: float) -> float:
    value = scaling.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default
