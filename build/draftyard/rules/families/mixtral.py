"""Mixtral: Mistral's attention, and in each layer a router over experts whose matrices are stacked."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.network import MixtureOfExperts, Network
from draftyard.rules.families.config_keys import ConfigKeys
from draftyard.rules.families.dense_decoder import Traits, layer_rules, outer_rules, resolve_decoder
from draftyard.rules.families.family import Family, Part, Place, Resolution, Rule, Split


def _resolve(config: Mapping[str, Json]) -> Resolution:
    keys = ConfigKeys(config)
    window = None if config.get("sliding_window") is None else keys.count("sliding_window")
    experts = MixtureOfExperts(
        experts=keys.count("num_local_experts"),
        experts_per_token=keys.count("num_experts_per_tok"),
        intermediate_size=keys.count("intermediate_size"),
        normalise=True,
    )
    if experts.experts_per_token > experts.experts:
        keys.fail("config.json: num_experts_per_tok exceeds num_local_experts", "correct config.json")
    return resolve_decoder(keys, Traits("mixtral", "MixtralForCausalLM", sliding_window=window, experts=experts))


def _rules(network: Network) -> tuple[Rule, ...]:
    layers = [rule for layer in range(network.layers) for rule in layer_rules(network, layer, _feed_forward)]
    return (*outer_rules(network), *layers)


def _feed_forward(network: Network, layer: int) -> tuple[Rule, ...]:
    """Router and stacked experts; of each expert the linear half (w3) comes before the activated one (w1).

    TensorRT-LLM 1.2.1, layers/moe.py: the reverse of the dense layer's order, and the router stays in 32 bit.
    """
    if network.experts is None:
        raise ValueError("a network of this family has experts")
    prefix, count = f"model.layers.{layer}.block_sparse_moe", network.experts.experts
    up, down = (
        (network.experts.intermediate_size, network.hidden_size),
        (network.hidden_size, network.experts.intermediate_size),
    )
    router = Part(f"{prefix}.gate.weight", (count, network.hidden_size))
    ups = [Part(f"{prefix}.experts.{index}.{name}.weight", up) for index in range(count) for name in ("w3", "w1")]
    downs = [Part(f"{prefix}.experts.{index}.w2.weight", down) for index in range(count)]
    return (
        Rule("mlp.router.weight", (router,), Split.WHOLE, Place.LAYER, layer, float32=True),
        Rule("mlp.fc.weight", tuple(ups), Split.EXPERTS_UP, Place.LAYER, layer),
        Rule("mlp.proj.weight", tuple(downs), Split.EXPERTS_DOWN, Place.LAYER, layer),
    )


MIXTRAL = Family("mixtral", "MixtralForCausalLM", _resolve, _rules)
