"""How many sequences an engine can hold: what the weights leave of the device, over what one sequence keeps."""

from draftyard.nouns.prediction import Placement
from draftyard.rules.predict.memory_parts import weight_bytes
from draftyard.rules.predict.step_terms import cache_bytes

# GB at tp 1, 2, 4, 8 for context, collectives and activations of a chunked step; and the default share of the rest
# that TensorRT-LLM gives to the cache (kv_cache_free_gpu_memory_fraction).
WORKING_GB = (1.4, 3.8, 5.3, 7.0)
POOL_SHARE = 0.90
# Sequences in flight are, on average over their lives, this far through their output when admission stops.
_OUTPUT_SHARE = 0.75


def pool_bytes(place: Placement, share: float = POOL_SHARE) -> float:
    """Bytes of one device's cache pool; 0 when the weights alone do not fit."""
    working = WORKING_GB[min(place.tp.bit_length() - 1, 3)] * 1e9
    return max(share * (place.device.usable_bytes - sum(weight_bytes(place)) - working), 0.0)


def held_sequences(place: Placement, isl: float, osl: float, most: float) -> float:
    """Sequences in flight: at most `most`, at most what the pool holds; one at least.

    The rule reproduces documented maximum throughput: pool / (bytes per token x (isl + 3/4 osl)).
    """
    each = cache_bytes(place, isl + _OUTPUT_SHARE * osl)
    return max(1.0, min(most, pool_bytes(place) / max(each, 1.0)))
