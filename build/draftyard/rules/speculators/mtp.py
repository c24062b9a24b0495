"""MTP: a decoder layer trained with the target on its last feature and the next token's embedding.

Layout of DeepSeek's files: `model.layers.N.` with `enorm`, `hnorm`, `eh_proj`, the layer itself, and `shared_head`.
"""

import re

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Network
from draftyard.nouns.speculator_source import SpeculatorNetwork
from draftyard.rules.families.family import Part, Rule
from draftyard.rules.speculators.layers import decoder_of, drafter_layer_rules, use_embedding, use_parts
from draftyard.rules.speculators.page import Evidence, Page, vocabulary, whole

STORED = re.compile(r"(?:model\.)?layers\.(\d+)\.(.+)")
_OUTER = {
    "enorm.weight": "enorm.weight",
    "hnorm.weight": "hnorm.weight",
    "eh_proj.weight": "eh_proj.weight",
    "shared_head.norm.weight": "norm.weight",
    "shared_head.head.weight": "lm_head.weight",
    "embed_tokens.weight": "embed_tokens.weight",
}


def _page_name(stored: str) -> str | None:
    found = STORED.fullmatch(stored)
    if found is None:
        return None
    return f"mtp.{_OUTER.get(found[2]) or f'layers.0.{found[2]}'}"


def _resolve(evidence: Evidence) -> SpeculatorNetwork:
    hidden_size = evidence.extent("mtp.eh_proj.weight", 0)
    evidence.use("mtp.eh_proj.weight", (hidden_size, 2 * hidden_size))
    for name in ("enorm", "hnorm", "norm"):
        evidence.use(f"mtp.{name}.weight", (hidden_size,))
    said = evidence.size("hidden_size")
    if said is not None and said != hidden_size:
        evidence.fail(f"config.json: hidden_size is {said}, eh_proj gives {hidden_size}", "fetch one revision")
    own_embedding, vocab_size = use_embedding(evidence, "mtp", hidden_size)
    decoder = decoder_of(evidence, "mtp", 1, hidden_size, vocab_size or 0)
    use_parts(evidence, drafter_layer_rules(decoder, "mtp", "mtp", 0))
    own_head = evidence.use("mtp.lm_head.weight", (vocab_size or 0, hidden_size), optional=True)
    evidence.report_strangers("an MTP module with an ordinary decoder layer")
    return SpeculatorNetwork(
        kind=SpeculatorKind.MTP,
        target_hidden_size=hidden_size,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        decoder=decoder,
        own_head=own_head,
        own_embedding=own_embedding,
    )


def mtp_rules(network: SpeculatorNetwork) -> tuple[Rule, ...]:
    """Where the tensors go in a checkpoint of their own (one rank); what is not stored is left out."""
    decoder = network.decoder
    if decoder is None:
        raise ValueError("an MTP module has a decoder layer")
    return (*_outer_rules(network, decoder), *drafter_layer_rules(decoder, "mtp", "mtp", 0))


def _outer_rules(network: SpeculatorNetwork, decoder: Network) -> tuple[Rule, ...]:
    hidden_size = decoder.hidden_size
    table = (network.vocab_size or 0, hidden_size)
    rules = [whole(f"mtp.{name}.weight", Part(f"mtp.{name}.weight", (hidden_size,))) for name in ("enorm", "hnorm")]
    rules.append(whole("mtp.eh_proj.weight", Part("mtp.eh_proj.weight", (hidden_size, 2 * hidden_size))))
    rules.append(whole("mtp.ln_f.weight", Part("mtp.norm.weight", (hidden_size,))))
    if network.own_head:
        rules.append(vocabulary("mtp.lm_head.weight", Part("mtp.lm_head.weight", table)))
    if network.own_embedding:
        rules.append(whole("mtp.vocab_embedding.weight", Part("mtp.embed_tokens.weight", table)))
    return tuple(rules)


MTP = Page(SpeculatorKind.MTP, "an MTP module", _page_name, _resolve)
