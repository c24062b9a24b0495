"""Llama: 1 to 3.3 and what shares its layout (SmolLM2, TinyLlama, Vicuna)."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.rules.families.config_keys import ConfigKeys
from draftyard.rules.families.dense_decoder import Traits, decoder_rules, resolve_decoder
from draftyard.rules.families.family import Family, Resolution


def _resolve(config: Mapping[str, Json]) -> Resolution:
    keys = ConfigKeys(config)
    attention_bias = keys.flag("attention_bias", False)
    traits = Traits(
        family="llama",
        architecture="LlamaForCausalLM",
        qkv_bias=attention_bias,
        dense_bias=attention_bias,
        mlp_bias=keys.flag("mlp_bias", False),
    )
    return resolve_decoder(keys, traits)


LLAMA = Family("llama", "LlamaForCausalLM", _resolve, decoder_rules)
