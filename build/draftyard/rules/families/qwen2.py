"""Qwen2 and Qwen2.5: biases on query, key and value, none on the output projection."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.rules.families.config_keys import ConfigKeys
from draftyard.rules.families.dense_decoder import Traits, decoder_rules, resolve_decoder
from draftyard.rules.families.family import Family, Resolution


def _resolve(config: Mapping[str, Json]) -> Resolution:
    keys = ConfigKeys(config)
    keys.only("use_sliding_window", (False,), "a sliding window on some layers")
    return resolve_decoder(keys, Traits("qwen2", "Qwen2ForCausalLM", qkv_bias=True))


QWEN2 = Family("qwen2", "Qwen2ForCausalLM", _resolve, decoder_rules)
