"""What a step must read, compute and exchange: ideal times from sizes and data-sheet constants."""

from draftyard.nouns.prediction import Link, ModelShape, Placement, Routing, StepTerms

_MS = 1e3
_HEAD_BYTES = 2.0


def distinct_experts(shape: ModelShape, tokens: float, routing: Routing) -> float:
    """Experts that a step of `tokens` tokens reads: E x (1 - (1 - k/E)^tokens) when tokens choose as if by chance.

    With `SAME` all tokens take the same k, as random weights make them.
    """
    if not shape.experts:
        return 0.0
    share = shape.experts_per_token / shape.experts
    if routing is Routing.SAME:
        return float(shape.experts_per_token)
    return float(shape.experts * (1.0 - (1.0 - share) ** max(tokens, 1.0)))


def cache_bytes_per_token(place: Placement) -> float:
    """Bytes that one more token of full attention keeps on one device; heads are copied when tp exceeds them."""
    return place.shape.kv_elements * place.storage.cache_bytes / min(place.tp, max(place.shape.kv_heads, 1))


def cache_bytes(place: Placement, context: float) -> float:
    """Bytes of one sequence's cache on one device at this context length, windows respected."""
    split = min(place.tp, max(place.shape.kv_heads, 1))
    seen = min(context, float(place.shape.window)) if place.shape.window else 0.0
    elements = place.shape.kv_elements * context + place.shape.window_kv_elements * seen
    return elements * place.storage.cache_bytes / split


def step_weight_bytes(place: Placement, tokens: float, routing: Routing) -> float:
    """Bytes of weights that one device reads in a step of `tokens` tokens; the token table is looked up, not read."""
    shape, storage = place.shape, place.storage
    experts = distinct_experts(shape, tokens, routing) * shape.expert_weights
    matrices = (shape.attention_weights + shape.dense_weights + experts) * storage.weight_bytes
    return (matrices + shape.vocabulary * shape.hidden * storage.embedding_bytes) / place.tp


def step_flops(place: Placement, tokens: float, head_rows: float) -> tuple[float, float, float]:
    """FLOPs of one device: of the matrices every token passes, of the experts it visits, of the head (in 16 bit)."""
    shape = place.shape
    return (
        2.0 * tokens * (shape.attention_weights + shape.dense_weights) / place.tp,
        2.0 * tokens * shape.experts_per_token * shape.expert_weights / place.tp,
        2.0 * head_rows * shape.vocabulary * shape.hidden / place.tp,
    )


def attention_flops(place: Placement, tokens: float, context: float) -> float:
    """FLOPs of scores and their use on one device: 4 x query width x tokens x context they see."""
    shape = place.shape
    seen = min(context, float(shape.window)) if shape.window else 0.0
    width = shape.attention_width * context + shape.window_attention_width * seen
    return 4.0 * tokens * width / place.tp


def link(place: Placement) -> Link:
    """What the devices of this placement talk over."""
    if place.tp == 1:
        return Link.NONE
    return Link.PCIE if place.device.pair_link and place.tp > 2 else Link.NVLINK


def step_terms(
    place: Placement,
    *,
    sequences: float,
    queries: float,
    context: float,
    head_rows: float,
    routing: Routing = Routing.SPREAD,
    causal: bool = False,
) -> StepTerms:
    """Ideal times of one step over `sequences` x `queries` tokens that see `context` tokens each.

    `head_rows` is how many tokens pass the head. `causal`: the queries are the prompt itself, so they see half of the
    context on average and write the cache instead of reading it.
    """
    shape, device, storage = place.shape, place.device, place.storage
    tokens = sequences * queries
    dense_flops, expert_flops, head_flops = step_flops(place, tokens, head_rows)
    eight = storage.compute_8bit
    kind = link(place)
    payload = tokens * shape.hidden * storage.activation_bytes
    slow = kind is Link.PCIE
    link_rate = _PCIE_BYTES_PER_S if slow else device.link_bytes_per_s
    reduces = 0.0 if kind is Link.NONE else 2.0 * shape.layers
    return StepTerms(
        weights_ms=_MS * step_weight_bytes(place, tokens, routing) / device.bandwidth_bytes_per_s,
        compute_ms=_MS * (head_flops + (0.0 if eight else dense_flops)) / device.peak_16bit,
        compute_8bit_ms=_MS * dense_flops / device.peak_8bit if eight else 0.0,
        expert_ms=_MS * expert_flops / (device.peak_8bit if eight else device.peak_16bit),
        cache_ms=_MS * sequences * cache_bytes(place, context) / device.bandwidth_bytes_per_s,
        attention_ms=_MS * attention_flops(place, tokens, context / 2 if causal else context) / device.peak_16bit,
        activation_ms=_MS * 8.0 * shape.layers * payload / device.bandwidth_bytes_per_s,
        reduce_ms=0.0 if not reduces else _MS * reduces * payload * 2.0 * (place.tp - 1) / place.tp / link_rate,
        reduces=0.0 if slow else reduces,
        hops=0.0 if slow else reduces * (place.tp - 1),
        slow_reduces=reduces if slow else 0.0,
        slow_hops=reduces * (place.tp - 1) if slow else 0.0,
        layers=float(shape.layers),
        expert_layers=float(shape.layers) if shape.experts else 0.0,
        sequences=sequences,
        tokens=tokens,
    )


# PCIe 5 x16, one way (the rate beside each pair's own bridge on H100 NVL).
_PCIE_BYTES_PER_S = 64e9
