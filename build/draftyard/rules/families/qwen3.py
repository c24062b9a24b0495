"""Qwen3 (dense): no biases, a norm over each query and key head, a head size of its own."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.rules.families.config_keys import ConfigKeys
from draftyard.rules.families.dense_decoder import Traits, decoder_rules, resolve_decoder
from draftyard.rules.families.family import Family, Resolution


def _resolve(config: Mapping[str, Json]) -> Resolution:
    keys = ConfigKeys(config)
    keys.only("use_sliding_window", (False,), "a sliding window on some layers")
    keys.only("attention_bias", (False,), "a bias in attention")
    # hidden size / heads is wrong for nearly every size of this family, so head_dim must be there.
    traits = Traits("qwen3", "Qwen3ForCausalLM", qk_norm=True, derives_head_size=False)
    return resolve_decoder(keys, traits)


QWEN3 = Family("qwen3", "Qwen3ForCausalLM", _resolve, decoder_rules)
