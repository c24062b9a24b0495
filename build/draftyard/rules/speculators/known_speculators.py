"""The speculators there is a page for, and which one a set of tensors belongs to; settings have no say in that."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from draftyard.nouns.errors import Problem
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.tensor import TensorHeader, name_list
from draftyard.rules.speculators.eagle import EAGLE, plain_name
from draftyard.rules.speculators.eagle3 import EAGLE3
from draftyard.rules.speculators.medusa import MEDUSA
from draftyard.rules.speculators.mtp import MTP, STORED
from draftyard.rules.speculators.page import Page

PAGES: dict[SpeculatorKind, Page] = {page.kind: page for page in (MEDUSA, EAGLE, EAGLE3, MTP)}
_HEADS = re.compile(r"(?:medusa_heads?\.)?\d{1,3}\.\d{1,3}\.(?:linear\.)?(?:weight|bias)")
_HIDDEN_NORM = re.compile(r"(?:midlayer|layers\.\d+)\.hidden_norm\.weight")
_WRAPPER = "eagle_module."
# The rotary frequencies some trainers saved; they follow from the settings.
_IGNORED_ENDING = ".rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class Recognised:
    """Which page the tensors are for, the sentence that says why, the tensors in use (by page name) and the rest."""

    page: Page
    reason: str
    tensors: Mapping[str, TensorHeader]
    stored_names: Mapping[str, str]
    others: tuple[str, ...]


def recognise(headers: tuple[TensorHeader, ...]) -> Recognised | Problem:
    """The speculator that these tensors make up; a Problem names what was seen when it is none of the known ones."""
    names = {header.name: header for header in headers}
    kind = _kind(names)
    if isinstance(kind, Problem):
        return kind
    page, reason = kind
    wrapped = page.kind is SpeculatorKind.EAGLE and any(name.startswith(_WRAPPER) for name in names)
    chosen: dict[str, TensorHeader] = {}
    stored: dict[str, str] = {}
    others: list[str] = []
    for name in sorted(names):
        own = None if name.endswith(_IGNORED_ENDING) or (wrapped and not name.startswith(_WRAPPER)) else name
        page_name = None if own is None or not _belongs(page, own, names) else page.page_name(own)
        if page_name is None:
            others.append(name)
        elif page_name in chosen:
            return Problem(
                f"{stored[page_name]} and {name} are two tensors for one place", "keep one of the two in the files"
            )
        else:
            chosen[page_name], stored[page_name] = names[name], name
    return Recognised(page, reason, chosen, stored, tuple(others))


def _kind(names: Mapping[str, TensorHeader]) -> tuple[Page, str] | Problem:
    if any(_HEADS.fullmatch(name) for name in names):
        return MEDUSA, "numbered heads of residual blocks"
    if _modules(names):
        return MTP, "enorm, hnorm and eh_proj of a layer"
    plain = {plain_name(name): header for name, header in names.items()}
    fc = plain.get("fc.weight")
    if fc is None or len(fc.shape) != 2:
        return Problem(
            f"these tensors make up no speculator that is known: {name_list(sorted(names))}",
            "known are Medusa heads, EAGLE, EAGLE-3 and MTP in the layouts of their authors",
        )
    shape = list(fc.shape)
    if any(_HIDDEN_NORM.fullmatch(name) for name in plain):
        return EAGLE3, f"fc has shape {shape} and a layer has a hidden_norm"
    if fc.shape[1] == 2 * fc.shape[0]:
        return EAGLE, f"fc has shape {shape}, twice its width, and no layer has a hidden_norm"
    return Problem(
        f"fc has shape {shape}: EAGLE takes twice its width, EAGLE-3 three features and a layer with hidden_norm",
        "fetch the whole network, or choose one of these two kinds",
    )


def _modules(names: Mapping[str, TensorHeader]) -> list[int]:
    """Numbers of the layers that are MTP modules."""
    found = (STORED.fullmatch(name) for name in names)
    return sorted({int(match[1]) for match in found if match and match[2] == "eh_proj.weight"})


def _belongs(page: Page, name: str, names: Mapping[str, TensorHeader]) -> bool:
    """A directory may hold a whole model and several modules: only the first module is used again and again."""
    if page.kind is not SpeculatorKind.MTP:
        return True
    found = STORED.fullmatch(name)
    return found is not None and int(found[1]) == _modules(names)[0]
