"""Mistral 7B and Nemo: Llama's layout with a head size of its own and, in the first version, a sliding window."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.rules.families.config_keys import ConfigKeys
from draftyard.rules.families.dense_decoder import Traits, decoder_rules, resolve_decoder
from draftyard.rules.families.family import Family, Resolution


def _resolve(config: Mapping[str, Json]) -> Resolution:
    keys = ConfigKeys(config)
    window = None if config.get("sliding_window") is None else keys.count("sliding_window")
    return resolve_decoder(keys, Traits("mistral", "MistralForCausalLM", sliding_window=window))


MISTRAL = Family("mistral", "MistralForCausalLM", _resolve, decoder_rules)
