"""What the page of a family says: config keys to a network, and where each stored tensor goes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from draftyard.nouns.digest import Json
from draftyard.nouns.enums import StrEnum
from draftyard.nouns.errors import Problem
from draftyard.nouns.network import Network

TensorTable: TypeAlias = Mapping[str, tuple[int, ...]]


class Split(StrEnum):
    """How tensor parallel ranks share a tensor; the axes are those of an (out, in) weight or an (out) bias."""

    WHOLE = "whole"
    ROWS = "rows"
    COLUMNS = "columns"
    QKV = "qkv"
    VOCABULARY = "vocabulary"
    EXPERTS_UP = "experts_up"
    EXPERTS_DOWN = "experts_down"


class Place(StrEnum):
    """Which pipeline stages hold a tensor."""

    FIRST = "first"
    LAYER = "layer"
    LAST = "last"
    EVERY = "every"


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the source: Hugging Face name and full shape."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One tensor of the checkpoint: its name within the model or layer, what it is made of, and how it is shared.

    `layer` is the global index of a layer's tensor; the name of such a tensor follows `transformer.layers.{local}.`.
    Without parts the tensor is zeros.
    `float32` keeps the tensor in 32 bit whatever the precision (the router of a mixture of experts).
    """

    name: str
    parts: tuple[Part, ...]
    split: Split
    place: Place
    layer: int | None = None
    float32: bool = False


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a config came to: the network when there is no problem, and notes for people."""

    network: Network | None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. `resolve` reads a parsed `config.json`; `rules` lists every tensor of the checkpoint."""

    model_type: str
    architecture: str
    resolve: Callable[[Mapping[str, Json]], Resolution]
    rules: Callable[[Network], tuple[Rule, ...]]


def source_tensors(rules: tuple[Rule, ...]) -> dict[str, tuple[int, ...]]:
    """Names and shapes the source files must hold: the parts of all rules."""
    return {part.name: part.shape for rule in rules for part in rule.parts}
