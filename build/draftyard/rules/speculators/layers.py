"""The decoder layers that EAGLE, EAGLE-3 and MTP bring: sizes from their tensors, settings for the rest."""

import re
from dataclasses import replace

from draftyard.nouns.network import Network
from draftyard.rules.families.dense_decoder import feed_forward_rules, layer_rules
from draftyard.rules.families.family import Part, Place, Rule
from draftyard.rules.families.rotary_keys import resolve_rotary
from draftyard.rules.speculators.page import Evidence

_LAYER = re.compile(r"(\w+)\.layers\.(\d{1,4})\.(.+)")


def stored_layers(evidence: Evidence) -> int:
    """Layers that are stored, counted from 0 without a gap; the count of the settings is only compared."""
    found = {int(match[2]) for match in map(_LAYER.fullmatch, evidence.tensors) if match}
    if not found:
        evidence.fail("no decoder layer is stored", "fetch the whole speculator, or save it again")
        return 0
    missing = sorted(set(range(max(found) + 1)) - found)
    if missing:
        evidence.fail(f"layer {missing[0]} is missing, though layer {max(found)} is stored", "fetch the whole network")
    evidence.tell("num_hidden_layers", len(found))
    return len(found)


def decoder_of(evidence: Evidence, page: str, layers: int, hidden_size: int, vocab_size: int) -> Network:
    """The network of the layers `{page}.layers.0...`: rows decide, the settings give head size, norms and positions."""
    prefix = f"{page}.layers.0"
    attention = f"{prefix}.self_attn"
    head_size = _head_size(evidence, hidden_size)
    heads = _heads(evidence, f"{attention}.q_proj.weight", "num_attention_heads", head_size)
    kv_heads = _heads(evidence, f"{attention}.k_proj.weight", "num_key_value_heads", head_size)
    if heads % kv_heads:
        evidence.fail(f"{heads} heads are no multiple of {kv_heads} KV heads", "fetch one revision of the files")
    rows = evidence.extent(f"{prefix}.mlp.gate_proj.weight", 0)
    evidence.tell("intermediate_size", rows)
    keys = evidence.keys
    keys.only("hidden_act", ("silu", "swish"), "another activation than silu")
    rotary_base, rotary_scaling = resolve_rotary(keys, head_size)
    qkv_bias, dense_bias = evidence.has(f"{attention}.q_proj.bias"), evidence.has(f"{attention}.o_proj.bias")
    plain = qkv_bias and not dense_bias
    return Network(
        family="qwen2" if plain else "llama",
        architecture="Qwen2ForCausalLM" if plain else "LlamaForCausalLM",
        hidden_size=hidden_size,
        intermediate_size=rows,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocab_size=vocab_size,
        max_position_embeddings=keys.count("max_position_embeddings"),
        norm_epsilon=keys.real("rms_norm_eps"),
        rotary_base=rotary_base,
        hidden_act="silu",
        tied_head=False,
        qkv_bias=qkv_bias,
        dense_bias=dense_bias,
        mlp_bias=evidence.has(f"{prefix}.mlp.gate_proj.bias"),
        qk_norm=evidence.has(f"{attention}.q_norm.weight"),
        rotary_scaling=rotary_scaling,
    )


def drafter_layer_rules(network: Network, page: str, prefix: str, layer: int) -> tuple[Rule, ...]:
    """The rules of one ordinary layer, its parts under the page's names, its tensors under `{prefix}.layers.`."""
    return tuple(
        replace(
            rule,
            name=f"{prefix}.layers.{layer}.{rule.name}",
            parts=tuple(Part(page + part.name.removeprefix("model"), part.shape) for part in rule.parts),
            place=Place.EVERY,
            layer=None,
        )
        for rule in layer_rules(network, layer, feed_forward_rules)
    )


def use_parts(evidence: Evidence, rules: tuple[Rule, ...]) -> None:
    """Count the parts of these rules as tensors that have their place, and compare their shapes."""
    for rule in rules:
        for part in rule.parts:
            evidence.use(part.name, part.shape)


def use_embedding(evidence: Evidence, page: str, hidden_size: int) -> tuple[bool, int | None]:
    """Whether an embedding is stored, and the target's vocabulary by the settings, or else by the embedding's rows."""
    name = f"{page}.embed_tokens.weight"
    vocab_size = evidence.size("vocab_size") or evidence.extent(name, 0) or evidence.extent(f"{page}.t2d", 0) or None
    if vocab_size is None:
        evidence.fail("config.json has no vocab_size", "add the number of the target's tokens to config.json")
    return evidence.use(name, (vocab_size or 0, hidden_size), optional=True), vocab_size


def _head_size(evidence: Evidence, hidden_size: int) -> int:
    """`head_dim`, or hidden size / heads; this network's own, whatever the target's is."""
    head_size = evidence.size("head_dim")
    if head_size is not None:
        return head_size
    heads = evidence.size("num_attention_heads")
    if heads is None:
        evidence.fail("config.json has neither head_dim nor num_attention_heads", "add them to config.json")
        return 1
    if hidden_size % heads:
        evidence.fail(f"hidden size {hidden_size} is no multiple of num_attention_heads {heads}", "add head_dim")
    return max(1, hidden_size // heads)


def _heads(evidence: Evidence, name: str, key: str, head_size: int) -> int:
    """Heads by the rows of a projection; other numbers in the settings make the head size doubtful and are refused."""
    rows, said = evidence.extent(name, 0), evidence.size(key)
    heads = max(1, rows // head_size)
    if rows % head_size or (said is not None and said != heads):
        evidence.fail(
            f"{name} has {rows} rows, which is not {key} {said if said is not None else 'n'} x head size {head_size}",
            "correct num_attention_heads, num_key_value_heads and head_dim of config.json",
        )
    return heads
