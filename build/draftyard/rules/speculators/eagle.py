"""EAGLE-1 and EAGLE-2: decoder layers on the target's last feature and the next token's embedding, joined by `fc`.

Layout of SafeAILab's files: `fc`, `layers.0...`, `embed_tokens`; a reduced draft vocabulary adds `lm_head` and `d2t`.
"""

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Network
from draftyard.nouns.speculator_source import SpeculatorNetwork
from draftyard.rules.families.family import Part, Place, Rule, Split
from draftyard.rules.speculators.layers import (
    decoder_of,
    drafter_layer_rules,
    stored_layers,
    use_embedding,
    use_parts,
)
from draftyard.rules.speculators.page import Evidence, Page, rows, target_embedding, target_head, vocabulary, whole
from draftyard.rules.speculators.vocabulary_map import use_head_and_map

PREFIXES = ("eagle_module.", "model.")


def plain_name(stored: str) -> str:
    """A stored name without the wrappers that some trainers put around the network."""
    for prefix in PREFIXES:
        stored = stored.removeprefix(prefix)
    return stored


def _page_name(stored: str) -> str | None:
    return f"eagle.{plain_name(stored)}"


def _resolve(evidence: Evidence) -> SpeculatorNetwork:
    hidden_size = evidence.extent("eagle.fc.weight", 0)
    evidence.use("eagle.fc.weight", (hidden_size, 2 * hidden_size))
    input_bias = evidence.use("eagle.fc.bias", (hidden_size,), optional=True)
    if not input_bias:
        evidence.note("fc has no bias: zeros stand for it")
    said = evidence.size("hidden_size")
    if said is not None and said != hidden_size:
        evidence.fail(f"config.json: hidden_size is {said}, fc gives {hidden_size}", "fetch one revision")
    own_embedding, vocab_size = use_embedding(evidence, "eagle", hidden_size)
    layers = stored_layers(evidence)
    decoder = decoder_of(evidence, "eagle", layers, hidden_size, vocab_size or 0)
    use_parts(evidence, layers_rules(decoder))
    found = use_head_and_map(evidence, "eagle", hidden_size, vocab_size)
    evidence.report_strangers("an EAGLE network")
    return SpeculatorNetwork(
        kind=SpeculatorKind.EAGLE,
        target_hidden_size=hidden_size,
        vocab_size=vocab_size,
        draft_vocab_size=found.draft_vocab_size,
        decoder=decoder,
        own_head=found.own_head,
        own_embedding=own_embedding,
        input_bias=input_bias,
        mapped=found.mapped,
    )


def layers_rules(decoder: Network) -> tuple[Rule, ...]:
    """The layers' tensors; the first has no norm on its input.

    It takes what `fc` gives: TensorRT-LLM 1.2.1 turns `use_input_layernorm_in_first_layer` off for EAGLE.
    """
    return tuple(
        rule
        for layer in range(decoder.layers)
        for rule in drafter_layer_rules(decoder, "eagle", "drafter", layer)
        if not (layer == 0 and rule.name == "drafter.layers.0.input_layernorm.weight")
    )


def eagle_rules(network: SpeculatorNetwork, target: Network) -> tuple[Rule, ...]:
    """Where the tensors go, below `eagle_nets.{i}.`, as in TensorRT-LLM 1.2.1 (`models/eagle`).

    Its network has a bias behind `fc` and an embedding and a head of its own: zeros and the target's stand in. With a
    reduced draft vocabulary (this project's addition) the map is written too, and an absent embedding stays absent.
    """
    decoder = network.decoder
    if decoder is None:
        raise ValueError("an EAGLE network has decoder layers")
    hidden_size = decoder.hidden_size
    bias = (Part("eagle.fc.bias", (hidden_size,)),) if network.input_bias else ()
    rules = [
        rows("drafter.fc.weight", Part("eagle.fc.weight", (hidden_size, 2 * hidden_size))),
        Rule("drafter.fc.bias", bias, Split.ROWS, Place.EVERY),
        *layers_rules(decoder),
    ]
    if network.own_embedding:
        table = Part("eagle.embed_tokens.weight", (target.vocab_size, hidden_size))
        rules.append(whole("drafter.vocab_embedding.weight", table))
    elif not network.reduced:
        rules.append(whole("drafter.vocab_embedding.weight", target_embedding(target)))
    if network.own_head:
        rules.append(
            vocabulary("lm_head.weight", Part("eagle.lm_head.weight", (network.draft_vocab_size or 0, hidden_size)))
        )
    else:
        rules.append(vocabulary("lm_head.weight", target_head(target)))
    if network.reduced:
        rules.append(whole("d2t", Part("eagle.d2t", (network.draft_vocab_size or 0,))))
    return tuple(rules)


EAGLE = Page(SpeculatorKind.EAGLE, "an EAGLE network", _page_name, _resolve)
