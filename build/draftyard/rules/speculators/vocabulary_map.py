"""A draft vocabulary that is a part of the target's: its sizes, and the map of draft ids to target ids.

`d2t[i]` is what must be added to draft id i to get the target's id; `t2d` marks the target's ids that can be drafted
(layout of SafeAILab's EAGLE-3). What goes wrong with maps is after ggml-org/llama.cpp#18039 and
NVIDIA-NeMo/Automodel#2447.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftyard.nouns.errors import Problem
from draftyard.nouns.tensor import TensorType
from draftyard.rules.speculators.page import Evidence

if TYPE_CHECKING:
    # Plans of recipes need no arrays; importing them would take longer than the plan.
    import numpy as np
    from numpy.typing import NDArray

_HINT = "save the map with the network it was trained with"
_MAP_TYPES = {"d2t": (TensorType.I64, "int64"), "t2d": (TensorType.BOOL, "bool")}


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Rows of the head (None: nothing says), whether a head is stored, whether draft ids are mapped."""

    draft_vocab_size: int | None
    own_head: bool
    mapped: bool


def use_head_and_map(evidence: Evidence, page: str, hidden_size: int, vocab_size: int | None) -> DraftVocabulary:
    """Count head and map as tensors that have their place; sizes that do not go together are problems.

    A reduced vocabulary needs both; with the whole one the target's head can stand in, and a map changes nothing.
    """
    head, table, marks = f"{page}.lm_head.weight", f"{page}.d2t", f"{page}.t2d"
    draft_vocab_size = evidence.size("draft_vocab_size") or evidence.extent(head, 0) or vocab_size
    rows = draft_vocab_size or 0
    own_head = evidence.use(head, (rows, hidden_size), optional=True)
    reduced = draft_vocab_size is not None and vocab_size is not None and draft_vocab_size != vocab_size
    mapped = _use_map(evidence, table, (rows,))
    if _use_map(evidence, marks, (vocab_size or 0,)):
        evidence.note("t2d agrees with d2t and is not needed")
    if reduced and rows > (vocab_size or 0):
        evidence.fail(f"draft_vocab_size {rows} is above vocab_size {vocab_size}", "correct config.json")
    if reduced and not mapped:
        evidence.fail(
            f"a draft vocabulary of {rows} out of {vocab_size} tokens needs a map, and there is no tensor d2t",
            "save the map of the training as d2t (int64, target id - draft id) with the network",
        )
    if reduced and not own_head:
        evidence.fail(
            f"a draft vocabulary of {rows} out of {vocab_size} tokens needs a head of its own, and there is no lm_head",
            "fetch the whole network: without its head it would draft at random",
        )
    if not own_head and not reduced:
        evidence.note("no head is stored: the target's is used")
    return DraftVocabulary(draft_vocab_size, own_head, mapped)


def _use_map(evidence: Evidence, name: str, shape: tuple[int, ...]) -> bool:
    if not evidence.has(name):
        return False
    wanted, word = _MAP_TYPES[name.rpartition(".")[2]]
    if evidence.type_of(name) is not wanted:
        evidence.fail(f"{name} is of type {evidence.type_of(name)}, and must be {word}", f"save it as {word}")
    return evidence.use(name, shape)


def map_problems(table: "NDArray[np.int64]", marks: "NDArray[np.bool_] | None", vocab_size: int) -> list[Problem]:
    """What is wrong with the values of a map (`table` is d2t, `marks` t2d), each with the first index it shows at."""
    import numpy as np

    problems = []
    moved = np.flatnonzero(table)
    if table.shape[0] == vocab_size and moved.size:
        at = int(moved[0])
        problems.append(Problem(f"d2t[{at}] is {int(table[at])}, though the draft vocabulary is the whole one", _HINT))
    ids = np.arange(table.shape[0]) + table
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if outside.size:
        at = int(outside[0])
        problems.append(
            Problem(f"d2t[{at}] leads to id {int(ids[at])}, outside the target's {vocab_size} tokens", _HINT)
        )
    first = np.unique(ids, return_index=True)[1]
    again = np.setdiff1d(np.arange(ids.shape[0]), first)
    if again.size:
        at = int(again[0])
        before = int(np.flatnonzero(ids == ids[at])[0])
        problems.append(Problem(f"d2t[{before}] and d2t[{at}] both lead to id {int(ids[at])}", _HINT))
    if marks is None:
        return problems
    marked = int(marks.sum())
    if marked != table.shape[0]:
        problems.append(Problem(f"t2d marks {marked} ids, the draft vocabulary has {table.shape[0]}", _HINT))
    inside = ids[(ids >= 0) & (ids < vocab_size)]
    expected = np.zeros(marks.shape[0], dtype=np.bool_)
    expected[inside[inside < marks.shape[0]]] = True
    differing = np.flatnonzero(expected != marks)
    if differing.size and not problems:
        at = int(differing[0])
        words = "marks it, d2t does not lead to it" if marks[at] else "does not mark it, d2t leads to it"
        problems.append(Problem(f"t2d and d2t disagree on id {at}: t2d {words}", _HINT))
    return problems
