"""What the page of a speculator says: names of stored tensors, sizes out of them, and where each tensor goes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draftyard.nouns.digest import Json
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Network
from draftyard.nouns.speculator_source import SpeculatorNetwork
from draftyard.nouns.tensor import TensorHeader, TensorType, name_list
from draftyard.rules.families.config_keys import ConfigKeys
from draftyard.rules.families.family import Part, Place, Rule, Split


class Evidence:
    """The tensors of one speculator under their page's names, its settings, and what was found wrong or resolved."""

    def __init__(self, tensors: Mapping[str, TensorHeader], config: Mapping[str, Json]) -> None:
        """Nothing is checked yet; `tensors` holds page names."""
        self.tensors = tensors
        self.keys = ConfigKeys(config)
        self.used: set[str] = set()

    def fail(self, message: str, hint: str) -> None:
        """Remember one problem."""
        self.keys.fail(message, hint)

    def note(self, words: str) -> None:
        """Remember a finding that was resolved."""
        self.keys.notes.append(words)

    def has(self, name: str) -> bool:
        """True when the tensor is stored."""
        return name in self.tensors

    def extent(self, name: str, axis: int) -> int:
        """One extent of a tensor; 0 when it is absent or has not so many."""
        shape = self.tensors[name].shape if name in self.tensors else ()
        return shape[axis] if axis < len(shape) else 0

    def use(self, name: str, shape: tuple[int, ...], *, optional: bool = False) -> bool:
        """Count a tensor as one that has its place, and compare its shape; returns whether it is there."""
        self.used.add(name)
        header = self.tensors.get(name)
        if header is None:
            if not optional:
                self.fail(f"there is no tensor {name}", "fetch the whole speculator, or save it again")
            return False
        if header.shape != shape:
            self.fail(
                f"{name} has shape {list(header.shape)}, expected {list(shape)}",
                "fetch weights and config.json of one revision",
            )
        return True

    def tell(self, key: str, found: int) -> None:
        """Compare a count of the settings with that of the tensors, which wins."""
        said = self.keys.config.get(key)
        if said is None:
            return
        if said != found:
            self.note(f"config.json: {key} is {said}, the tensors hold {found}: the tensors count")

    def size(self, key: str) -> int | None:
        """A size of the settings: a whole number of at least 1, None when absent or null, a problem otherwise."""
        if self.keys.config.get(key) is None:
            return None
        before = len(self.keys.problems)
        value = self.keys.count(key)
        return value if len(self.keys.problems) == before else None

    def report_strangers(self, what: str) -> None:
        """Every tensor that no `use` counted is a problem: nothing stored is dropped in silence."""
        strangers = sorted(name for name in self.tensors if name not in self.used)
        if strangers:
            self.fail(f"tensors that {what} has no place for: {name_list(strangers)}", "choose another speculator")

    def type_of(self, name: str) -> TensorType:
        """Element type of a tensor that is there."""
        return self.tensors[name].type


@dataclass(frozen=True, slots=True)
class Page:
    """One way to speculate. `page_name` gives this project's name of a stored tensor, None for one it does not use."""

    kind: SpeculatorKind
    what: str
    page_name: Callable[[str], str | None]
    resolve: Callable[[Evidence], SpeculatorNetwork]


def whole(name: str, part: Part) -> Rule:
    """A tensor that every rank holds whole."""
    return Rule(name, (part,), Split.WHOLE, Place.EVERY)


def rows(name: str, part: Part) -> Rule:
    """A tensor that every stage holds, its rows shared by the tensor parallel ranks."""
    return Rule(name, (part,), Split.ROWS, Place.EVERY)


def vocabulary(name: str, part: Part) -> Rule:
    """A projection to the vocabulary, its rows padded and shared by the tensor parallel ranks of every stage."""
    return Rule(name, (part,), Split.VOCABULARY, Place.EVERY)


def target_embedding(target: Network) -> Part:
    """The target's own embedding, as its files name it."""
    return Part("model.embed_tokens.weight", (target.vocab_size, target.hidden_size))


def target_head(target: Network) -> Part:
    """The target's own head, which is its embedding when the two are tied."""
    table = target_embedding(target)
    return table if target.tied_head else Part("lm_head.weight", table.shape)
