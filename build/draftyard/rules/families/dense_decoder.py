"""What the dense decoders have in common: sizes out of a config, and the tensors of one layer after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from draftyard.nouns.network import MixtureOfExperts, Network
from draftyard.rules.families.config_keys import MOST_LAYERS, ConfigKeys
from draftyard.rules.families.family import Part, Place, Resolution, Rule, Split
from draftyard.rules.families.rotary_keys import resolve_rotary

FeedForward: TypeAlias = Callable[[Network, int], tuple[Rule, ...]]


@dataclass(frozen=True, slots=True)
class Traits:
    """In what a family differs from the others."""

    family: str
    architecture: str
    qkv_bias: bool = False
    dense_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    experts: MixtureOfExperts | None = None
    derives_head_size: bool = True


def resolve_decoder(keys: ConfigKeys, traits: Traits) -> Resolution:
    """The network of a config whose family-specific keys are already in `traits`.

    An absent or null `num_key_value_heads` is the number of heads; an absent or null `head_dim` is hidden size / heads
    (where the family derives it).
    """
    hidden_size, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    head_size = _head_size(keys, hidden_size, heads, traits.derives_head_size)
    kv_heads = _kv_heads(keys, heads)
    keys.only("hidden_act", ("silu", "swish"), "another activation than silu")
    _check_layer_types(keys)
    keys.only("pretraining_tp", (0, 1), "a split projection")
    rotary_base, rotary_scaling = resolve_rotary(keys, head_size)
    network = Network(
        family=traits.family,
        architecture=traits.architecture,
        hidden_size=hidden_size,
        intermediate_size=keys.count("intermediate_size"),
        layers=keys.count("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocab_size=keys.count("vocab_size"),
        max_position_embeddings=keys.count("max_position_embeddings"),
        norm_epsilon=keys.real("rms_norm_eps"),
        rotary_base=rotary_base,
        hidden_act="silu",
        tied_head=keys.flag("tie_word_embeddings", False),
        qkv_bias=traits.qkv_bias,
        dense_bias=traits.dense_bias,
        mlp_bias=traits.mlp_bias,
        qk_norm=traits.qk_norm,
        rotary_scaling=rotary_scaling,
        experts=traits.experts,
        sliding_window=traits.sliding_window,
    )
    return Resolution(None if keys.problems else network, tuple(keys.problems), tuple(keys.notes))


def decoder_rules(network: Network) -> tuple[Rule, ...]:
    """Every tensor of the checkpoint of a dense decoder, layers in order.

    Checkpoint names as in TensorRT-LLM 1.2.1 (`models/llama`): `fc` is the projection with the activation, `gate` the
    other one; Q, K and V are fused by rows.
    """
    layers = [rule for layer in range(network.layers) for rule in layer_rules(network, layer, feed_forward_rules)]
    return (*outer_rules(network), *layers)


def outer_rules(network: Network) -> tuple[Rule, ...]:
    """Embedding, final norm and head; a tied head is made of the embedding."""
    table = Part("model.embed_tokens.weight", (network.vocab_size, network.hidden_size))
    head = table if network.tied_head else Part("lm_head.weight", table.shape)
    norm = Part("model.norm.weight", (network.hidden_size,))
    return (
        Rule("transformer.vocab_embedding.weight", (table,), Split.WHOLE, Place.FIRST),
        Rule("transformer.ln_f.weight", (norm,), Split.WHOLE, Place.LAST),
        Rule("lm_head.weight", (head,), Split.VOCABULARY, Place.LAST),
    )


def layer_rules(network: Network, layer: int, feed_forward: FeedForward) -> tuple[Rule, ...]:
    """The tensors of one layer: attention and norms here, the rest from `feed_forward`."""
    hidden_size = network.hidden_size

    def norm(name: str, source: str, size: int) -> Rule:
        part = Part(f"model.layers.{layer}.{source}.weight", (size,))
        return Rule(f"{name}.weight", (part,), Split.WHOLE, Place.LAYER, layer)

    norms = [
        norm("input_layernorm", "input_layernorm", hidden_size),
        norm("post_layernorm", "post_attention_layernorm", hidden_size),
    ]
    if network.qk_norm:
        norms.append(norm("attention.q_layernorm", "self_attn.q_norm", network.head_size))
        norms.append(norm("attention.k_layernorm", "self_attn.k_norm", network.head_size))
    return (*_attention_rules(network, layer), *norms, *feed_forward(network, layer))


def feed_forward_rules(network: Network, layer: int) -> tuple[Rule, ...]:
    """Gated feed-forward: gate_proj becomes `fc`, up_proj becomes `gate`, down_proj becomes `proj`."""
    prefix, hidden_size, rows = f"model.layers.{layer}.mlp", network.hidden_size, network.intermediate_size
    biases = network.mlp_bias
    return (
        *linear(layer, "mlp.fc", (Part(f"{prefix}.gate_proj", (rows, hidden_size)),), Split.ROWS, biases),
        *linear(layer, "mlp.gate", (Part(f"{prefix}.up_proj", (rows, hidden_size)),), Split.ROWS, biases),
        *linear(layer, "mlp.proj", (Part(f"{prefix}.down_proj", (hidden_size, rows)),), Split.COLUMNS, biases),
    )


def linear(layer: int, name: str, modules: tuple[Part, ...], split: Split, bias: bool) -> tuple[Rule, ...]:
    """Rules of a linear layer made of `modules` (names without `.weight`), with its bias when there is one.

    The bias of a layer split by columns is added once, after the sum over ranks, so every rank holds it whole.
    """
    weights = tuple(Part(f"{part.name}.weight", part.shape) for part in modules)
    rules = [Rule(f"{name}.weight", weights, split, Place.LAYER, layer)]
    if bias:
        biases = tuple(Part(f"{part.name}.bias", part.shape[:1]) for part in modules)
        bias_split = Split.WHOLE if split is Split.COLUMNS else split
        rules.append(Rule(f"{name}.bias", biases, bias_split, Place.LAYER, layer))
    return tuple(rules)


def _attention_rules(network: Network, layer: int) -> tuple[Rule, ...]:
    prefix, hidden_size = f"model.layers.{layer}.self_attn", network.hidden_size
    query_rows, kv_rows = network.heads * network.head_size, network.kv_heads * network.head_size
    qkv = (
        Part(f"{prefix}.q_proj", (query_rows, hidden_size)),
        Part(f"{prefix}.k_proj", (kv_rows, hidden_size)),
        Part(f"{prefix}.v_proj", (kv_rows, hidden_size)),
    )
    output = (Part(f"{prefix}.o_proj", (hidden_size, query_rows)),)
    return (
        *linear(layer, "attention.qkv", qkv, Split.QKV, network.qkv_bias),
        *linear(layer, "attention.dense", output, Split.COLUMNS, network.dense_bias),
    )


def _check_layer_types(keys: ConfigKeys) -> None:
    """transformers 5 writes what each layer attends to; layers that differ have no place in these pages."""
    kinds = keys.config.get("layer_types")
    others = sorted({str(kind) for kind in kinds} - {"full_attention"}) if isinstance(kinds, list) else []
    if others:
        keys.fail(
            f"config.json: layer_types has {', '.join(others)}; full_attention is supported", "choose another model"
        )


def _head_size(keys: ConfigKeys, hidden_size: int, heads: int, derives: bool) -> int:
    size = _plain_head_size(keys, hidden_size, heads, derives)
    if size % 2 and size > 1:
        keys.fail(
            f"config.json: the head size is {size} (hidden_size {hidden_size}, num_attention_heads {heads}); rotary "
            "positions turn pairs, so it must be even",
            "correct head_dim, hidden_size or num_attention_heads",
        )
    return size


def _plain_head_size(keys: ConfigKeys, hidden_size: int, heads: int, derives: bool) -> int:
    if keys.config.get("head_dim") is not None:
        return keys.count("head_dim")
    if not derives:
        keys.fail("config.json has no head_dim, which this family needs", "add head_dim to config.json")
        return 1
    if hidden_size % heads:
        keys.fail(
            f"config.json: no head_dim, and hidden_size {hidden_size} is no multiple of num_attention_heads {heads}",
            "add head_dim to config.json",
        )
    return max(1, hidden_size // heads)


def _kv_heads(keys: ConfigKeys, heads: int) -> int:
    if isinstance(keys.config.get("num_key_value_heads"), list):
        keys.fail(
            "config.json: num_key_value_heads is a list per layer; one count for all layers is supported",
            "choose another model",
        )
        return heads
    kv_heads = keys.count("num_key_value_heads", heads)
    if heads % kv_heads:
        keys.fail(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}",
            "correct config.json",
        )
    return kv_heads
