"""Sizes of the models that published measurements name; a model that is not listed is guessed from its parameters."""

from dataclasses import dataclass, replace

from draftyard.nouns.prediction import ModelShape


@dataclass(frozen=True)
class Experts:
    """A sparse feed-forward: experts, experts a token visits, rows of one, rows of the shared one, layers with it."""

    count: int
    visited: int
    rows: int
    shared_rows: int = 0
    layers: int = 0


@dataclass(frozen=True)
class Attention:
    """Query heads, key and value heads, size of a head."""

    heads: int
    kv_heads: int
    head_size: int


def decoder(
    name: str,
    layers: int,
    hidden: int,
    rows: int,
    attention: Attention,
    vocabulary: int,
    experts: Experts | None = None,
    gated: bool = True,
    tied: bool = False,
) -> ModelShape:
    """A decoder whose layers are all alike, but for layers without experts (`rows` are those of the dense ones)."""
    a = attention
    attended = layers * hidden * a.head_size * (2 * a.heads + 2 * a.kv_heads)
    matrices = 3 if gated else 2
    sparse = 0 if experts is None else (experts.layers or layers)
    dense = (layers - sparse) * matrices * hidden * rows
    if experts is not None:
        dense += sparse * (3 * hidden * experts.shared_rows + hidden * experts.count)
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        attention_weights=attended,
        dense_weights=dense,
        kv_heads=a.kv_heads,
        kv_elements=2 * layers * a.kv_heads * a.head_size,
        attention_width=layers * a.heads * a.head_size,
        expert_weights=0 if experts is None else sparse * 3 * hidden * experts.rows,
        experts=0 if experts is None else experts.count,
        experts_per_token=0 if experts is None else experts.visited,
        tied_head=tied,
    )


def latent(base: ModelShape, attention_weights: int, heads: int) -> ModelShape:
    """Multi-head latent attention: one compressed vector of 576 elements a token, copied to every device."""
    return replace(
        base,
        attention_weights=base.layers * attention_weights,
        kv_heads=1,
        kv_elements=base.layers * 576,
        attention_width=base.layers * heads * 544,
    )


def windowed(base: ModelShape, window: int) -> ModelShape:
    """Every second layer sees `window` tokens at most."""
    return replace(
        base,
        window=window,
        kv_elements=base.kv_elements // 2,
        window_kv_elements=base.kv_elements // 2,
        attention_width=base.attention_width // 2,
        window_attention_width=base.attention_width // 2,
    )


def hybrid(base: ModelShape, full_layers: int, linear_weights: int) -> ModelShape:
    """Only `full_layers` keep a cache; the others have linear attention with `linear_weights` elements each."""
    share = full_layers / base.layers
    other = (base.layers - full_layers) * linear_weights
    return replace(
        base,
        attention_weights=int(base.attention_weights * share) + other,
        kv_elements=int(base.kv_elements * share),
        attention_width=int(base.attention_width * share),
    )


_DEEPSEEK = latent(
    decoder("DeepSeek-V3", 61, 7168, 18432, Attention(128, 128, 128), 129280, Experts(256, 8, 2048, 2048, 58)),
    187_107_328,
    128,
)
_KIMI = latent(
    decoder("Kimi-K2", 61, 7168, 18432, Attention(64, 64, 128), 163840, Experts(384, 8, 2048, 2048, 60)),
    101_122_048,
    64,
)
_LLAMA_70B = decoder("Llama-2-70B", 80, 8192, 28672, Attention(64, 8, 128), 32000)
_LLAMA_3_70B = decoder("Llama-3-70B", 80, 8192, 28672, Attention(64, 8, 128), 128256)
_LLAMA_3_8B = decoder("Llama-3-8B", 32, 4096, 14336, Attention(32, 8, 128), 128256)
_LLAMA_7B = decoder("Llama-2-7B", 32, 4096, 11008, Attention(32, 32, 128), 32000)
_LLAMA_13B = decoder("Llama-2-13B", 40, 5120, 13824, Attention(40, 40, 128), 32000)
_QWEN_30B = decoder("Qwen3-30B-A3B", 48, 2048, 6144, Attention(32, 4, 128), 151936, Experts(128, 8, 768))
_QWEN_235B = decoder("Qwen3-235B-A22B", 94, 4096, 12288, Attention(64, 4, 128), 151936, Experts(128, 8, 1536))
_SHAPES: dict[str, ModelShape] = {
    "Llama-2-7B": _LLAMA_7B,
    "LLaMA-7B": _LLAMA_7B,
    "Vicuna-7B": _LLAMA_7B,
    "Llama-2-13B": _LLAMA_13B,
    "Vicuna-13B": _LLAMA_13B,
    "Vicuna-33B": decoder("Vicuna-33B", 60, 6656, 17920, Attention(52, 52, 128), 32000),
    "Llama-2-70B": _LLAMA_70B,
    "Llama-3-8B": _LLAMA_3_8B,
    "Llama-3.1-8B": _LLAMA_3_8B,
    "DeepSeek-R1-Distill-Llama-8B": _LLAMA_3_8B,
    "Llama-3-70B": _LLAMA_3_70B,
    "Llama-3.1-70B": _LLAMA_3_70B,
    "Llama-3.3-70B": _LLAMA_3_70B,
    "Llama-3.1-405B": decoder("Llama-3.1-405B", 126, 16384, 53248, Attention(128, 8, 128), 128256),
    "Llama-3.2-1B": decoder("Llama-3.2-1B", 16, 2048, 8192, Attention(32, 8, 64), 128256, tied=True),
    "Llama-3.2-3B": decoder("Llama-3.2-3B", 28, 3072, 8192, Attention(24, 8, 128), 128256, tied=True),
    "Mistral-7B": decoder("Mistral-7B", 32, 4096, 14336, Attention(32, 8, 128), 32000),
    "Mistral-Nemo-Instruct-2407": decoder("Mistral-Nemo", 40, 5120, 14336, Attention(32, 8, 128), 131072),
    "Mixtral-8x7B": decoder("Mixtral-8x7B", 32, 4096, 14336, Attention(32, 8, 128), 32000, Experts(8, 2, 14336)),
    "Mixtral-8x22B": decoder("Mixtral-8x22B", 56, 6144, 16384, Attention(48, 8, 128), 32768, Experts(8, 2, 16384)),
    "GPT-J-6B": decoder("GPT-J-6B", 28, 4096, 16384, Attention(16, 16, 256), 50400, gated=False),
    "Falcon-180B": decoder("Falcon-180B", 80, 14848, 59392, Attention(232, 8, 64), 65024, gated=False, tied=True),
    "Qwen2.5-7B-Instruct": decoder("Qwen2.5-7B", 28, 3584, 18944, Attention(28, 4, 128), 152064),
    "Qwen3-1.7B": decoder("Qwen3-1.7B", 28, 2048, 6144, Attention(16, 8, 128), 151936, tied=True),
    "Qwen3-4B": decoder("Qwen3-4B", 36, 2560, 9728, Attention(32, 8, 128), 151936, tied=True),
    "Qwen3-8B": decoder("Qwen3-8B", 36, 4096, 12288, Attention(32, 8, 128), 151936),
    "Qwen3-14B": decoder("Qwen3-14B", 40, 5120, 17408, Attention(40, 8, 128), 151936),
    "Qwen3-32B": decoder("Qwen3-32B", 64, 5120, 25600, Attention(64, 8, 128), 151936),
    "Qwen3-30B-A3B": _QWEN_30B,
    "Qwen3-30B-A3B-Instruct-2507": _QWEN_30B,
    "Qwen3-Coder-30B-A3B-Instruct": _QWEN_30B,
    "Qwen3-235B-A22B": _QWEN_235B,
    "Qwen3-235B-A22B-Instruct-2507": _QWEN_235B,
    "Qwen3-Coder-480B-A35B-Instruct": decoder(
        "Qwen3-Coder-480B", 62, 6144, 8192, Attention(96, 8, 128), 151936, Experts(160, 8, 2560)
    ),
    "Qwen3-Next-80B-A3B-Instruct-FP8": hybrid(
        decoder("Qwen3-Next-80B", 48, 2048, 5120, Attention(16, 2, 256), 151936, Experts(512, 10, 512, 512)),
        12,
        34_000_000,
    ),
    "Qwen3.5-27B": hybrid(decoder("Qwen3.5-27B", 64, 5120, 17408, Attention(24, 4, 256), 248320), 16, 115_000_000),
    "Qwen3.5-35B-A3B": hybrid(
        decoder("Qwen3.5-35B-A3B", 40, 2048, 5120, Attention(16, 2, 256), 248320, Experts(256, 8, 512, 512)),
        10,
        34_000_000,
    ),
    "Qwen3.5-397B-A17B": hybrid(
        decoder("Qwen3.5-397B-A17B", 60, 4096, 8192, Attention(32, 2, 256), 248320, Experts(512, 10, 1024, 1024)),
        15,
        117_000_000,
    ),
    "Llama-4-Scout": decoder(
        "Llama-4-Scout", 48, 5120, 16384, Attention(40, 8, 128), 202048, Experts(16, 1, 8192, 8192)
    ),
    "Llama-4-Maverick": decoder(
        "Llama-4-Maverick", 48, 5120, 16384, Attention(40, 8, 128), 202048, Experts(128, 1, 8192, 8192, 24)
    ),
    "DeepSeek-V3": _DEEPSEEK,
    "DeepSeek-R1": _DEEPSEEK,
    "Kimi-K2-Instruct": _KIMI,
    "Kimi-K2.5": _KIMI,
    "Kimi-K2.6": _KIMI,
    "GLM-5": latent(
        decoder("GLM-5", 78, 6144, 12288, Attention(64, 64, 128), 154880, Experts(256, 8, 2048, 2048, 75)),
        164_000_000,
        64,
    ),
    "MiniMax-M2.5": decoder("MiniMax-M2.5", 62, 3072, 8192, Attention(48, 8, 128), 200064, Experts(256, 8, 1536)),
    "gpt-oss-120b": windowed(
        decoder("gpt-oss-120b", 36, 2880, 2880, Attention(64, 8, 64), 201088, Experts(128, 4, 2880)), 128
    ),
    "gpt-oss-20b": windowed(
        decoder("gpt-oss-20b", 24, 2880, 2880, Attention(64, 8, 64), 201088, Experts(32, 4, 2880)), 128
    ),
    "Ling-flash-2.0": decoder(
        "Ling-flash-2.0", 32, 4096, 9216, Attention(32, 4, 128), 157184, Experts(256, 8, 1024, 1024, 31)
    ),
    "Hy3-295B-A21B": decoder(
        "Hy3-295B-A21B", 80, 4096, 13312, Attention(64, 8, 128), 128512, Experts(192, 8, 1536, 1536)
    ),
}


def published_shape(model: str, parameters_b: float | None, active_b: float | None) -> ModelShape | None:
    """The sizes of a named model; guessed from billions of parameters otherwise, None when these are not given."""
    known = _SHAPES.get(model)
    if known is not None:
        return known
    if not parameters_b:
        return None
    return guessed_shape(model, parameters_b * 1e9, (active_b or parameters_b) * 1e9)


def guessed_shape(model: str, parameters: float, active: float) -> ModelShape:
    """A Llama-like decoder of this many parameters: depth = hidden / 102, eight KV heads, 128 K words."""
    hidden = max(round((active * 102 / 12) ** (1 / 3) / 128) * 128, 256)
    layers = max(round(hidden / 102), 2)
    heads = max(hidden // 128, 8)
    base = decoder(model, layers, hidden, int(3.5 * hidden), Attention(heads, 8, 128), 128_000)
    if parameters <= active * 1.1:
        scale = max(parameters - base.embedding_weights, 1e6) / base.linear_weights
        return replace(
            base,
            attention_weights=int(base.attention_weights * scale),
            dense_weights=int(base.dense_weights * scale),
        )
    one = max((active - base.attention_weights - base.embedding_weights) / 8, 1e6)
    count = max(round((parameters - base.attention_weights - base.embedding_weights) / one), 9)
    return replace(base, dense_weights=0, expert_weights=int(one), experts=count, experts_per_token=8)
