"""Requests of OpenAI's API read into values and into the entry's tensors; the table and the document agree."""

import json

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.nouns.openai import OpenAiKind
from draftyard.nouns.web import ApiProblem
from draftyard.rules.openai_document import document
from draftyard.rules.openai_fields import fixed_fields, known_fields, number_fields
from draftyard.rules.openai_request import entry_call, read_object, read_request

CHAT, COMPLETION = OpenAiKind.CHAT, OpenAiKind.COMPLETION
MOST = 1000
SMALLEST = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    COMPLETION: {"model": "m", "prompt": "x"},
}
WHOLE = document("m", "1", True, MOST)


def read(kind, **fields):
    return read_request(kind, {**SMALLEST[kind], **fields}, "m", MOST)


def allowed_by_document(kind, fields):
    name = "ChatRequest" if kind is CHAT else "CompletionRequest"
    schema = {"$ref": f"#/components/schemas/{name}", "components": WHOLE["components"]}
    return jsonschema_rs.is_valid(schema, fields)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2000) | st.floats(-3, 3) | st.sampled_from(["", "text", "auto", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "a"]), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("kind", [CHAT, COMPLETION])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_is_read_is_what_the_document_allows(kind, data):
    name = data.draw(st.sampled_from((*known_fields(kind), "other")))
    fields = {**SMALLEST[kind], name: data.draw(JSON_VALUES)}
    try:
        read_request(kind, fields, "m", MOST)
        found = True
    except ApiProblem as problem:
        found = False
        assert problem.status in (400, 404)
        assert problem.param
    assert found == allowed_by_document(kind, fields), fields


@pytest.mark.parametrize("kind", [CHAT, COMPLETION])
def test_every_field_of_the_document_is_read_and_the_other_way_round(kind):
    name = "ChatRequest" if kind is CHAT else "CompletionRequest"
    assert set(WHOLE["components"]["schemas"][name]["properties"]) == set(known_fields(kind))


@pytest.mark.parametrize("kind", [CHAT, COMPLETION])
def test_null_is_as_good_as_nothing(kind):
    content = {"model", "messages", "prompt"}
    nothing = dict.fromkeys(set(known_fields(kind)) - content)
    assert read(kind, **nothing) == read(kind)


@pytest.mark.parametrize(
    ("fields", "greedy"),
    [
        ({}, False),
        ({"temperature": 0}, True),
        ({"temperature": 1e-4}, True),
        ({"top_p": 0}, True),
        ({"top_p": 1}, False),
    ],
)
def test_greedy_is_said_by_top_k_alone(fields, greedy):
    call = entry_call(read(COMPLETION, **fields), "entry", 16, 77)
    sent = {tensor.name: tensor.values for tensor in call.tensors}
    assert sent["top_k"] == ((1,) if greedy else (0,))
    assert ("temperature" in sent, "seed" in sent) == (not greedy, not greedy)
    assert greedy or sent["seed"] == (77,)


def test_bounds_hold_at_their_ends():
    for kind in (CHAT, COMPLETION):
        for field in number_fields(kind, MOST):
            step = 1 if field.whole else 0.01
            for value in (field.low, field.high):
                read(kind, **{field.name: int(value) if field.whole else value})
            for value in (field.low - step, field.high + step):
                with pytest.raises(ApiProblem, match=field.name):
                    read(kind, **{field.name: int(value) if field.whole else value})


@pytest.mark.parametrize("kind", [CHAT, COMPLETION])
def test_what_is_refused_says_why(kind):
    for name, field in fixed_fields(kind).items():
        with pytest.raises(ApiProblem) as caught:
            read(kind, **{name: {"something": "else"}})
        assert field.why in caught.value.message
        assert caught.value.param == name


@pytest.mark.parametrize("value", [True, 1.5, "1"])
def test_one_and_true_are_told_apart(value):
    with pytest.raises(ApiProblem):
        read(COMPLETION, n=value)


def test_an_answer_can_be_sent_back_as_a_message():
    answered = {"role": "assistant", "content": "hi", "refusal": None, "annotations": [], "tool_calls": None}
    text = read(CHAT, messages=[*SMALLEST[CHAT]["messages"], answered]).text
    assert json.loads(text)[1] == {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize("text", ["\ud800", "a\0", ""])
def test_texts_that_no_engine_takes(text):
    with pytest.raises(ApiProblem):
        read(COMPLETION, prompt=text)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_body_or_a_problem(body):
    try:
        assert isinstance(read_object(body), dict)
    except ApiProblem as problem:
        assert problem.code == "invalid_json"


def test_an_unknown_field_is_named_with_the_nearest():
    with pytest.raises(ApiProblem, match="did you mean temperature"):
        read(CHAT, temprature=1)
