"""What one device holds while an engine runs: weights by precision, cache, activations, logits, a constant by tp."""

from dataclasses import dataclass

from draftyard.nouns.prediction import Placement
from draftyard.rules.predict.step_terms import cache_bytes

GB = 1e9


@dataclass(frozen=True, slots=True)
class MemoryLoad:
    """Sequences held, tokens of the largest step, tokens of one sequence at its end, logit rows of one sequence."""

    sequences: float
    step_tokens: float
    sequence_tokens: float
    logit_rows: float


@dataclass(frozen=True, slots=True)
class MemoryCoefficients:
    """Multipliers: of weights, cache, activations (step tokens x hidden x 2 bytes) and logits (float32); GB by tp.

    `constant_gb` is what the context, the collectives and their work space take at tp 1, 2, 4 and 8.
    """

    weights: float
    cache: float
    activation: float
    logits: float
    constant_gb: tuple[float, float, float, float]


def weight_bytes(place: Placement) -> tuple[float, float]:
    """Bytes of one device: matrices at their precision, embeddings and head in theirs (16 bit, also beside FP8)."""
    return (
        place.shape.linear_weights * place.storage.weight_bytes / place.tp,
        place.shape.embedding_weights * place.storage.embedding_bytes / place.tp,
    )


def static_parts(place: Placement, load: MemoryLoad) -> tuple[float, ...]:
    """GB of one device before any multiplier: weights, cache, activations, logits; then log2 of tp."""
    matrices, embeddings = weight_bytes(place)
    return (
        (matrices + embeddings) / GB,
        load.sequences * cache_bytes(place, load.sequence_tokens) / GB,
        load.step_tokens * place.shape.hidden * 2.0 / GB,
        load.sequences * load.logit_rows * place.shape.vocabulary * 4.0 / GB,
        float(place.tp.bit_length() - 1),
    )


def peak_gb(parts: tuple[float, ...], fitted: MemoryCoefficients) -> float:
    """Peak memory of one device in GB, from `static_parts`."""
    weights, cache, activation, logits, power = parts
    return (
        weights * fitted.weights
        + cache * fitted.cache
        + activation * fitted.activation
        + logits * fitted.logits
        + fitted.constant_gb[min(int(power), 3)]
    )
