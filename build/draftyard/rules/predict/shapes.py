"""Sizes of networks and speculators as the predictor counts them: elements over all layers, bytes per element."""

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.prediction import ModelShape, Storage

_CPU_ITEM_BYTES = 4.0  # the reference lane computes and caches in float32
_WEIGHT_BYTES = {Precision.FP32: 4.0, Precision.FP16: 2.0, Precision.BF16: 2.0, Precision.FP8: 1.0}


def shape_of_network(network: Network) -> ModelShape:
    """Elements of every matrix of a gated decoder with grouped heads, after its sizes; norms and biases left out."""
    query = network.heads * network.head_size
    pair = 2 * network.kv_heads * network.head_size
    attended = network.hidden_size * (2 * query + pair)
    experts = network.experts
    dense = 3 * network.hidden_size * network.intermediate_size
    if experts is not None:
        dense = network.hidden_size * experts.experts
    window = network.sliding_window
    # A window that covers every position is none.
    windowed = window is not None and window < network.max_position_embeddings
    cached, width = network.layers * pair, network.layers * query
    return ModelShape(
        name=network.family,
        layers=network.layers,
        hidden=network.hidden_size,
        vocabulary=network.vocab_size,
        attention_weights=network.layers * attended,
        dense_weights=network.layers * dense,
        kv_heads=network.kv_heads,
        kv_elements=0 if windowed else cached,
        attention_width=0 if windowed else width,
        expert_weights=0 if experts is None else network.layers * 3 * network.hidden_size * experts.intermediate_size,
        experts=0 if experts is None else experts.experts,
        experts_per_token=0 if experts is None else experts.experts_per_token,
        window=window or 0,
        window_kv_elements=cached if windowed else 0,
        window_attention_width=width if windowed else 0,
        tied_head=network.tied_head,
    )


def storage_of(precision: Precision, gpu: Gpu, cache_8bit: bool) -> Storage:
    """Bytes per element of a precision on a device: FP8 keeps embeddings and head in 16 bit."""
    weight = _WEIGHT_BYTES[precision]
    eight = precision is Precision.FP8
    if gpu is Gpu.CPU:
        # The reference lane multiplies 8-bit weights as 16-bit ones and keeps the rest in float32.
        held = max(weight, 2.0)
        return Storage(held, held, _CPU_ITEM_BYTES, _CPU_ITEM_BYTES, False)
    rest = 2.0 if eight else weight
    return Storage(weight, rest, 1.0 if cache_8bit else rest, rest, eight)
