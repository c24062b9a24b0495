"""Holds a speculator's tensors and settings against each other and finds every contradiction."""

from collections import Counter
from dataclasses import dataclass

from draftyard.nouns.errors import Problem
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.source import ModelFiles
from draftyard.nouns.speculator_source import SpeculatorNetwork
from draftyard.nouns.tensor import TensorType, name_list
from draftyard.rules.speculators.known_speculators import PAGES, Recognised, recognise
from draftyard.rules.speculators.page import Evidence

_WEIGHT_TYPES = {TensorType.F32, TensorType.F16, TensorType.BF16}
_BASE_PREFIXES = ("model.", "lm_head.", "base_model.")
_MAPS = (".d2t", ".t2d")


@dataclass(frozen=True, slots=True)
class SpeculatorExamination:
    """What a directory came to; `recognised` and `network` are None when the tensors are no known speculator."""

    recognised: Recognised | None
    network: SpeculatorNetwork | None
    weight_type: TensorType
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


def examine_speculator(files: ModelFiles, asked: SpeculatorKind | None = None) -> SpeculatorExamination:
    """Resolve every fact once; the files' own problems first. `asked` is the kind that a recipe names.

    Names of architectures and model types in the settings are not looked at: the tensors decide, so that no type has
    to be registered anywhere.
    """
    problems, notes = list(files.problems), list(files.notes)
    if not files.tensors:
        return SpeculatorExamination(None, None, TensorType.F32, tuple(problems), tuple(notes))
    recognised = recognise(files.tensors)
    if isinstance(recognised, Problem):
        return SpeculatorExamination(None, None, TensorType.F32, (*problems, recognised), tuple(notes))
    kind = recognised.page.kind
    if asked is not None and kind is not asked:
        problems.append(
            Problem(
                f"the recipe says {asked}, the tensors say {kind}: {recognised.reason}",
                f"write kind: {kind}, or give a directory with {PAGES[asked].what}"
                if asked in PAGES
                else f"write kind: {kind}",
            )
        )
        return SpeculatorExamination(recognised, None, TensorType.F32, tuple(problems), tuple(notes))
    evidence = Evidence(recognised.tensors, files.config)
    quantisation = _quantised(evidence)
    network = None if quantisation else recognised.page.resolve(evidence)
    problems.extend(quantisation or evidence.keys.problems)
    problems.extend(_stranger_problems(recognised))
    if recognised.others:
        notes.append(f"ignored: {name_list(recognised.others)}")
    notes.extend(evidence.keys.notes)
    return SpeculatorExamination(
        recognised, None if problems else network, _weight_type(evidence), tuple(problems), tuple(notes)
    )


def _stranger_problems(recognised: Recognised) -> list[Problem]:
    """Medusa's names are numbers; what is named otherwise is a base model in the same files, or unknown and refused."""
    if recognised.page.kind is not SpeculatorKind.MEDUSA:
        return []
    strangers = [name for name in recognised.others if not name.startswith(_BASE_PREFIXES)]
    if not strangers:
        return []
    words = f"tensors that {recognised.page.what} has no place for: {name_list(strangers)}"
    return [Problem(words, "choose another speculator")]


def _quantised(evidence: Evidence) -> list[Problem]:
    """Weights that are no plain numbers; the maps of a draft vocabulary are judged by themselves."""
    others = [
        f"{name} ({header.type})"
        for name, header in evidence.tensors.items()
        if header.type not in _WEIGHT_TYPES and not name.endswith(_MAPS)
    ]
    if not others:
        return []
    words = f"tensors of a type that is no plain weight: {name_list(others)}"
    return [Problem(words, "give the speculator in 16 or 32 bit")]


def _weight_type(evidence: Evidence) -> TensorType:
    """The element type that most bytes have."""
    bytes_by_type: Counter[TensorType] = Counter()
    for header in evidence.tensors.values():
        if header.type in _WEIGHT_TYPES:
            bytes_by_type[header.type] += header.size_bytes
    return bytes_by_type.most_common(1)[0][0] if bytes_by_type else TensorType.F32
