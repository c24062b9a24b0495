"""Whatever tensors and settings a directory holds, it is a speculator or a list of problems, and never an accident."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.tiny_speculators import eagle3_weights, eagle_weights, layer_config, medusa_weights, mtp_weights

from draftyard.nouns.source import ModelFiles
from draftyard.nouns.tensor import TensorHeader, TensorSpec, TensorType
from draftyard.rules.speculators.examination import examine_speculator
from draftyard.rules.speculators.vocabulary_map import map_problems

TYPES = {"float32": TensorType.F32, "int64": TensorType.I64, "bool": TensorType.BOOL}


def headers_of(weights: Mapping[str, np.ndarray]) -> list[TensorHeader]:
    return [header_of(name, TYPES[value.dtype.name], value.shape) for name, value in weights.items()]


def header_of(name: str, kind: TensorType, shape: tuple[int, ...]) -> TensorHeader:
    return TensorHeader(name, kind, shape, "f", 0, TensorSpec(name, kind, shape).size_bytes)


def files_of(headers: list[TensorHeader], config: Mapping[str, object]) -> ModelFiles:
    return ModelFiles("speculator", config, {}, None, tuple(headers), (), ())  # type: ignore[arg-type]


STORED = {
    "medusa": headers_of(medusa_weights(3, 2, vocabulary=50)),
    "eagle": headers_of(eagle_weights(layers=2)),
    "eagle3": headers_of(eagle3_weights()),
    "mtp": headers_of(mtp_weights(head=True, embedding=True)),
}
VALUES = st.one_of(st.none(), st.integers(-2, 100), st.floats(allow_nan=False), st.text(max_size=3), st.booleans())
SHAPES = st.lists(st.integers(0, 100), max_size=3).map(tuple)


@pytest.mark.parametrize("kind", STORED)
def test_untouched_it_is_whole(kind: str) -> None:
    found = examine_speculator(files_of(STORED[kind], layer_config()))
    assert (found.problems, found.network is not None) == ((), True)


@pytest.mark.parametrize("kind", STORED)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changed_it_is_whole_or_has_problems(kind: str, data: st.DataObject) -> None:
    headers, config = list(STORED[kind]), dict(layer_config())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(headers) - 1))
        change = data.draw(st.sampled_from(["drop", "shape", "type", "name", "config", "forget"]))
        header = headers[at]
        if change == "drop" and len(headers) > 1:
            del headers[at]
        elif change == "shape":
            headers[at] = header_of(header.name, header.type, data.draw(SHAPES))
        elif change == "type":
            headers[at] = header_of(header.name, data.draw(st.sampled_from(TensorType)), header.shape)
        elif change == "name":
            headers[at] = header_of(data.draw(st.text(max_size=12)) + header.name[2:], header.type, header.shape)
        elif change == "config":
            config[data.draw(st.sampled_from([*config, "draft_vocab_size", "head_dim"]))] = data.draw(VALUES)
        else:
            config.pop(data.draw(st.sampled_from(list(config))) if config else "", None)
    found = examine_speculator(files_of(headers, config))
    assert (found.network is None) == bool(found.problems)


@pytest.mark.parametrize("name", ["999999999.0.linear.weight", "0.999999999.linear.weight", "1000.0.linear.bias"])
def test_a_number_that_no_head_has_is_no_head(name: str) -> None:
    found = examine_speculator(files_of([*STORED["medusa"], header_of(name, TensorType.F32, (32, 32))], {}))
    (problem,) = found.problems
    assert problem.message == f"tensors that a set of Medusa heads has no place for: {name}"


def test_a_base_in_the_same_files_is_ignored_and_anything_else_refused() -> None:
    """A norm that is dropped would change what the heads compute."""
    beside = header_of("model.layers.0.mlp.up_proj.weight", TensorType.F32, (4, 4))
    found = examine_speculator(files_of([*STORED["medusa"], beside], {}))
    assert (found.problems, f"ignored: {beside.name}" in found.notes) == ((), True)
    norm = header_of("medusa_head.0.0.norm.weight", TensorType.F32, (32,))
    assert examine_speculator(files_of([*STORED["medusa"], norm], {})).problems


def test_a_place_that_two_tensors_claim() -> None:
    twice = [*STORED["eagle"], header_of("model.fc.weight", TensorType.F32, (32, 64))]
    (problem,) = examine_speculator(files_of(twice, layer_config())).problems
    assert problem.message == "fc.weight and model.fc.weight are two tensors for one place"


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 59), min_size=1, max_size=40, unique=True))
def test_any_choice_of_ids_is_a_map(ids: list[int]) -> None:
    table = np.array(ids, np.int64) - np.arange(len(ids))
    marks = np.zeros(60, np.bool_)
    marks[ids] = True
    assert map_problems(table, marks, 60) == []
    assert map_problems(table, None, 60) == []


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 59), min_size=2, max_size=40, unique=True), st.data())
def test_any_slip_in_a_map_is_told(ids: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ids) - 1))
    slips = st.one_of(st.integers(-5, -1), st.integers(60, 70), st.sampled_from([one for one in ids if one != ids[at]]))
    wrong = [*ids]
    wrong[at] = data.draw(slips)
    (problem,) = map_problems(np.array(wrong, np.int64) - np.arange(len(ids)), None, 60)
    assert f"d2t[{at}]" in problem.message or f"id {wrong[at]}" in problem.message
