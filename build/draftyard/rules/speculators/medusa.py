"""Medusa: heads of residual blocks on the target's last feature, with or without a vocabulary projection of their own.

Layout of FasterDecoding's files: `{head}.{block}.linear.weight`, and `{head}.{blocks}.weight` for a projection.
"""

import re

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Network
from draftyard.nouns.speculator_source import SpeculatorNetwork
from draftyard.rules.families.family import Part, Rule
from draftyard.rules.speculators.page import Evidence, Page, rows, target_head, vocabulary

_STORED = re.compile(r"(?:medusa_heads?\.)?(\d{1,3})\.(\d{1,3})\.(linear\.weight|linear\.bias|weight)")
_HINT = "fetch the whole set of heads, or save it again"


def _page_name(stored: str) -> str | None:
    found = _STORED.fullmatch(stored)
    return f"medusa.{int(found[1])}.{int(found[2])}.{found[3]}" if found else None


def _resolve(evidence: Evidence) -> SpeculatorNetwork:
    heads = _counted(evidence, {_numbers(name)[0] for name in evidence.tensors}, "head")
    hidden_size = evidence.extent("medusa.0.0.linear.weight", 0)
    blocks = _blocks(evidence, heads)
    for head in range(heads):
        for block in range(blocks):
            evidence.use(f"medusa.{head}.{block}.linear.weight", (hidden_size, hidden_size))
            evidence.use(f"medusa.{head}.{block}.linear.bias", (hidden_size,))
    rows_of_head = _projections(evidence, heads, blocks, hidden_size)
    evidence.report_strangers("a set of Medusa heads")
    _settings(evidence, heads, blocks, hidden_size)
    vocab_size = _vocabulary(evidence, rows_of_head)
    return SpeculatorNetwork(
        kind=SpeculatorKind.MEDUSA,
        target_hidden_size=hidden_size,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        heads=heads,
        head_layers=blocks,
        own_head=rows_of_head is not None,
    )


def medusa_rules(network: SpeculatorNetwork, target: Network, heads: int) -> tuple[Rule, ...]:
    """Where the tensors of the first `heads` heads go; without projections of their own each takes the target's head.

    Names and cuts as in TensorRT-LLM 1.2.1 (`models/medusa`): rows by tensor parallel rank, on every pipeline stage.
    """
    hidden_size, rules = network.target_hidden_size, list[Rule]()
    for head in range(heads):
        for block in range(network.head_layers):
            name, part = f"medusa_heads.{head}.medusa_layers.{block}.linear", f"medusa.{head}.{block}.linear"
            rules.append(rows(f"{name}.weight", Part(f"{part}.weight", (hidden_size, hidden_size))))
            rules.append(rows(f"{name}.bias", Part(f"{part}.bias", (hidden_size,))))
        shape = (target.vocab_size, hidden_size)
        own = Part(f"medusa.{head}.{network.head_layers}.weight", shape)
        rules.append(
            vocabulary(f"medusa_heads.{head}.lm_head.weight", own if network.own_head else target_head(target))
        )
    return tuple(rules)


def _numbers(name: str) -> tuple[int, int]:
    _, head, block, *_ = name.split(".")
    return int(head), int(block)


def _counted(evidence: Evidence, found: set[int], what: str) -> int:
    """How many there are, counted from 0 without a gap."""
    missing = sorted(set(range(max(found) + 1)) - found)
    if missing:
        evidence.fail(f"{what} {missing[0]} is missing, though {what} {max(found)} is stored", _HINT)
    return max(found) + 1


def _blocks(evidence: Evidence, heads: int) -> int:
    """Residual blocks of a head; all heads must have as many as the first."""
    counts = []
    for head in range(heads):
        own = {_numbers(name)[1] for name in evidence.tensors if ".linear." in name and _numbers(name)[0] == head}
        counts.append(_counted(evidence, own, f"block of head {head}, number") if own else 0)
    for head, count in enumerate(counts):
        if count != counts[0]:
            evidence.fail(f"head {head} has {count} residual blocks, head 0 has {counts[0]}", _HINT)
    return counts[0]


def _projections(evidence: Evidence, heads: int, blocks: int, hidden_size: int) -> int | None:
    """Rows of the vocabulary projections, None when no head has one."""
    names = [f"medusa.{head}.{blocks}.weight" for head in range(heads)]
    owners = [head for head, name in enumerate(names) if evidence.has(name)]
    if not owners:
        return None
    lacking = [head for head in range(heads) if head not in owners]
    if lacking:
        evidence.used.update(names)
        evidence.fail(f"head {lacking[0]} has no vocabulary projection, head {owners[0]} has one", _HINT)
        return None
    vocabulary_size = evidence.extent(names[0], 0)
    for name in names:
        evidence.use(name, (vocabulary_size, hidden_size))
    return vocabulary_size


def _vocabulary(evidence: Evidence, rows_of_head: int | None) -> int | None:
    """Tokens the heads are made for, by their projections or else by the settings; None when neither says."""
    said = evidence.size("vocab_size")
    if said is not None and rows_of_head is not None and said != rows_of_head:
        evidence.fail(
            f"config.json: vocab_size is {said}, the heads' projections have {rows_of_head} rows", "fetch one revision"
        )
    return said if rows_of_head is None else rows_of_head


def _settings(evidence: Evidence, heads: int, blocks: int, hidden_size: int) -> None:
    """Settings are often made by hand, and only some name the counts."""
    for key, found in (("medusa_num_heads", heads), ("medusa_num_layers", blocks)):
        evidence.tell(key, found)
        if evidence.keys.config.get(key) is None:
            evidence.note(f"config.json has no {key}: {found} by the tensors")
    said = evidence.size("hidden_size")
    if said is not None and said != hidden_size:
        evidence.fail(f"config.json: hidden_size is {said}, the heads take {hidden_size}", "fetch one revision")


MEDUSA = Page(SpeculatorKind.MEDUSA, "a set of Medusa heads", _page_name, _resolve)
