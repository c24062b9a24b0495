"""EAGLE-3: one decoder layer on features of three layers of the target, joined by `fc`, and the token's embedding.

Layouts of SafeAILab (`midlayer...`) and of those who number it (`layers.0...`).
"""

from collections.abc import Sequence
from dataclasses import replace

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Network
from draftyard.nouns.speculator_source import SpeculatorNetwork
from draftyard.rules.families.family import Part, Rule
from draftyard.rules.speculators.eagle import plain_name
from draftyard.rules.speculators.layers import (
    decoder_of,
    drafter_layer_rules,
    stored_layers,
    use_embedding,
    use_parts,
)
from draftyard.rules.speculators.page import Evidence, Page, vocabulary, whole
from draftyard.rules.speculators.vocabulary_map import use_head_and_map

TAPS = 3


def _page_name(stored: str) -> str | None:
    name = plain_name(stored)
    return "eagle3." + (f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name)


def _resolve(evidence: Evidence) -> SpeculatorNetwork:
    hidden_size = evidence.extent("eagle3.fc.weight", 0)
    target_hidden_size, rest = divmod(evidence.extent("eagle3.fc.weight", 1), TAPS)
    if rest:
        evidence.fail("fc does not take three features of one width", "choose a network for features of three layers")
    evidence.use("eagle3.fc.weight", (hidden_size, TAPS * target_hidden_size))
    said = evidence.size("hidden_size")
    if said is not None and said != hidden_size:
        evidence.fail(f"config.json: hidden_size is {said}, fc gives {hidden_size}", "fetch one revision")
    evidence.use("eagle3.norm.weight", (hidden_size,))
    own_embedding, vocab_size = use_embedding(evidence, "eagle3", hidden_size)
    _one_layer(evidence)
    decoder = decoder_of(evidence, "eagle3", 1, hidden_size, vocab_size or 0)
    use_parts(evidence, layer_rules_of(decoder))
    found = use_head_and_map(evidence, "eagle3", hidden_size, vocab_size)
    _check_borrowed(evidence, hidden_size, target_hidden_size, own_embedding, found.own_head)
    evidence.report_strangers("an EAGLE-3 network")
    return SpeculatorNetwork(
        kind=SpeculatorKind.EAGLE3,
        target_hidden_size=target_hidden_size,
        vocab_size=vocab_size,
        draft_vocab_size=found.draft_vocab_size,
        decoder=decoder,
        own_head=found.own_head,
        own_embedding=own_embedding,
        mapped=found.mapped,
        taps=_taps(evidence),
    )


def layer_rules_of(decoder: Network) -> tuple[Rule, ...]:
    """The one layer: its attention takes the normed embedding beside the normed feature, twice the hidden size."""
    width = 2 * decoder.hidden_size
    rules = [
        replace(rule, parts=tuple(Part(part.name, (part.shape[0], width)) for part in rule.parts))
        if rule.name == "eagle3.layers.0.attention.qkv.weight"
        else rule
        for rule in drafter_layer_rules(decoder, "eagle3", "eagle3", 0)
    ]
    norm = Part("eagle3.layers.0.hidden_norm.weight", (decoder.hidden_size,))
    return (*rules, whole("eagle3.layers.0.hidden_norm.weight", norm))


def eagle3_rules(network: SpeculatorNetwork) -> tuple[Rule, ...]:
    """Where the tensors go in a checkpoint of their own (one rank); what is not stored is left out."""
    decoder = network.decoder
    if decoder is None:
        raise ValueError("an EAGLE-3 network has a decoder layer")
    hidden_size, draft_rows = decoder.hidden_size, network.draft_vocab_size or 0
    rules = [
        whole("eagle3.fc.weight", Part("eagle3.fc.weight", (hidden_size, TAPS * network.target_hidden_size))),
        *layer_rules_of(decoder),
        whole("eagle3.ln_f.weight", Part("eagle3.norm.weight", (hidden_size,))),
    ]
    if network.own_head:
        rules.append(vocabulary("eagle3.lm_head.weight", Part("eagle3.lm_head.weight", (draft_rows, hidden_size))))
    if network.reduced:
        rules.append(whole("eagle3.d2t", Part("eagle3.d2t", (draft_rows,))))
    if network.own_embedding:
        table = Part("eagle3.embed_tokens.weight", (network.vocab_size or 0, hidden_size))
        rules.append(whole("eagle3.vocab_embedding.weight", table))
    return tuple(rules)


def default_taps(layers: int) -> tuple[int, int, int]:
    """Counts of target layers whose features are read where the settings name none: near the start, middle, end.

    As SafeAILab's EAGLE-3 and its servers take them; held inside a target that has too few layers for that.
    """
    return min(2, layers), layers // 2, max(0, layers - 3)


def _one_layer(evidence: Evidence) -> None:
    layers = stored_layers(evidence)
    if layers > 1:
        evidence.fail(f"the network has {layers} layers; EAGLE-3 with one layer is supported", "choose another network")


def _check_borrowed(
    evidence: Evidence, hidden_size: int, target_hidden_size: int, own_embedding: bool, own_head: bool
) -> None:
    """The target's embedding and head fit only a network of the target's own width."""
    if hidden_size == target_hidden_size:
        return
    for stored, what in ((own_embedding, "embedding (embed_tokens)"), (own_head, "head (lm_head)")):
        if not stored:
            evidence.fail(
                f"no {what} is stored, and the target's of width {target_hidden_size} does not fit the "
                f"network's {hidden_size}",
                "fetch the whole network",
            )


def _taps(evidence: Evidence) -> tuple[int, ...] | None:
    """`eagle_aux_hidden_state_layer_ids` of the settings, which counts target layers as the servers do."""
    block = evidence.keys.config.get("eagle_config")
    key = "eagle_aux_hidden_state_layer_ids"
    value = block.get(key) if isinstance(block, dict) else evidence.keys.config.get(key)
    if value is None:
        return None
    listed = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    numbers = [item for item in listed if isinstance(item, int) and not isinstance(item, bool) and item >= 0]
    if len(numbers) != TAPS or len(listed) != TAPS:
        evidence.fail(f"config.json: {key} is {value!r}, not three counts of layers", f"correct {key}")
        return None
    return tuple(numbers)


EAGLE3 = Page(SpeculatorKind.EAGLE3, "an EAGLE-3 network", _page_name, _resolve)
