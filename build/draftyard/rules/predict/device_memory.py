"""Forecasts one device's memory part by part, and how many requests its cache holds."""

import math
from dataclasses import dataclass

from draftyard.nouns.prediction import Estimate, Fit, MemoryForecast, MemoryUse, Placement
from draftyard.rules.predict.memory_parts import GB, MemoryCoefficients, weight_bytes
from draftyard.rules.predict.step_terms import cache_bytes, cache_bytes_per_token

# Above this share of what the device reports, published peaks exceed predictions often enough to call it tight.
TIGHT_SHARE = 0.92
# Every name a part can have, in the order of the list.
PARTS = (
    "weights",
    "embedding and head",
    "KV cache",
    "draft weights",
    "draft KV cache",
    "draft slots and logits",
    "logits",
    "activations",
    "CUDA graphs",
    "context and exchange",
)
_GRAPH_BYTES = 10e6  # of one captured CUDA graph (TensorRT-LLM blog 20: 0.26 GB for 49, 2.6 GB for 259)
_LOGIT_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class SpeculatorMemory:
    """What a speculator adds on one device: weights, cache of one token, tokens verified beside the next one."""

    weights_bytes: float = 0.0
    cache_bytes_per_token: float = 0.0
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """What an engine is built for; tokens. `graphs` is how many CUDA graphs are captured."""

    max_batch: int
    max_tokens_per_step: int
    cache_tokens: int
    graphs: int = 0


def forecast_memory(
    place: Placement,
    speculator: SpeculatorMemory,
    sizes: EngineSizes,
    lengths: tuple[int, int],
    fitted: MemoryCoefficients,
    bounds: tuple[float, float],
) -> MemoryForecast:
    """Memory of one device. `lengths` are the tokens of an average prompt and answer; `bounds` as of the fit.

    All parts in bytes: published fits of TensorRT-LLM 0.9 for activations, logits and the constant by tp, counted
    sizes for the rest. On H100 the 80 GB part reports 85.5e9 bytes, and that is what the total is held against.
    """
    parts = _parts(place, speculator, sizes, fitted)
    total = sum(part.size_bytes for part in parts)
    estimate = Estimate(total, total * math.exp(bounds[0]), total * math.exp(bounds[1]))
    usable = place.device.usable_bytes or None
    plain = SpeculatorMemory()
    tokens = lengths[0] + lengths[1]
    with_drafts = _pool_tokens(place, speculator, sizes, fitted)
    without = _pool_tokens(place, plain, sizes, fitted)
    return MemoryForecast(
        parts=parts,
        total=estimate,
        usable_bytes=usable,
        fit=_fit(total, usable),
        sequences_plain=min(sizes.max_batch, without // tokens),
        sequences=min(sizes.max_batch, with_drafts // (tokens + speculator.nodes)),
        pool_tokens=with_drafts,
    )


def _pool_tokens(place: Placement, speculator: SpeculatorMemory, sizes: EngineSizes, fitted: MemoryCoefficients) -> int:
    """Tokens the cache can hold: as many as asked for, or as many as the rest of the device leaves room for."""
    if not place.device.usable_bytes:
        return sizes.cache_tokens
    parts = _parts(place, speculator, sizes, fitted)
    rest = sum(part.size_bytes for part in parts if not part.part.endswith("cache"))
    each = cache_bytes_per_token(place) * fitted.cache + speculator.cache_bytes_per_token
    return max(0, min(sizes.cache_tokens, int((place.device.usable_bytes - rest) / max(each, 1.0))))


def _parts(
    place: Placement, speculator: SpeculatorMemory, sizes: EngineSizes, fitted: MemoryCoefficients
) -> tuple[MemoryUse, ...]:
    shape, storage = place.shape, place.storage
    matrices, embeddings = weight_bytes(place)
    each = cache_bytes_per_token(place)
    if shape.window_kv_elements:
        each = cache_bytes(place, float(shape.window)) / shape.window
    rows = sizes.max_batch * speculator.nodes
    logit_row = shape.vocabulary * _LOGIT_BYTES
    hidden = sizes.max_tokens_per_step * shape.hidden * 2.0
    found = [
        MemoryUse(
            "weights", matrices * fitted.weights, f"{shape.linear_weights:,} x {storage.weight_bytes:g} / tp {place.tp}"
        ),
        MemoryUse(
            "embedding and head",
            embeddings * fitted.weights,
            f"{shape.embedding_weights:,} x {storage.embedding_bytes:g} / tp {place.tp}",
        ),
        MemoryUse(
            "KV cache", sizes.cache_tokens * each * fitted.cache, f"{sizes.cache_tokens:,} tokens x {each:,.0f} bytes"
        ),
        MemoryUse("draft weights", speculator.weights_bytes, "tensors of the speculator"),
        MemoryUse(
            "draft KV cache",
            sizes.cache_tokens * speculator.cache_bytes_per_token,
            f"{sizes.cache_tokens:,} tokens x {speculator.cache_bytes_per_token:,.0f} bytes",
        ),
        MemoryUse(
            "draft slots and logits",
            rows * (logit_row + each),
            f"{sizes.max_batch} x {speculator.nodes} rows x ({logit_row:,.0f} + {each:,.0f})",
        ),
        MemoryUse("logits", sizes.max_batch * logit_row * fitted.logits, f"{sizes.max_batch} rows, fitted"),
        MemoryUse("activations", hidden * fitted.activation, f"{sizes.max_tokens_per_step} tokens a step, fitted"),
        MemoryUse("CUDA graphs", sizes.graphs * _GRAPH_BYTES, f"{sizes.graphs} x {_GRAPH_BYTES / 1e6:g} MB"),
        MemoryUse("context and exchange", _constant(place.tp, fitted) * GB, f"fitted for tp {place.tp}"),
    ]
    return tuple(part for part in found if part.size_bytes > 0)


def _constant(tp: int, fitted: MemoryCoefficients) -> float:
    """GB by tp; between the measured powers of two on a straight line, above 8 as at 8."""
    known = (1, 2, 4, 8)
    for index in range(3):
        low, high = known[index], known[index + 1]
        if tp <= high:
            share = max(tp - low, 0) / (high - low)
            return fitted.constant_gb[index] * (1 - share) + fitted.constant_gb[index + 1] * share
    return fitted.constant_gb[3]


def _fit(total: float, usable: float | None) -> Fit:
    if usable is None or total <= TIGHT_SHARE * usable:
        return Fit.FITS
    return Fit.TIGHT if total <= usable else Fit.DOES_NOT_FIT
