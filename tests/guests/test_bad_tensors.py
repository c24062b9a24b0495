"""Every tensor of the entry sent wrong in every way: an error that says what to change, and a server that lives on."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tests.guests.rig import Client, complete, post, serve, value, write_repository
from tests.guests.tokenizers_made import byte_level
from tritonclient.utils import triton_to_np_dtype

from draftyard.nouns.repository import LogitsType, ModelName, TritonType
from draftyard.rules.triton_tensors import model_tensors

pytestmark = pytest.mark.server
TENSORS = {tensor.name: tensor for tensor in model_tensors(ModelName.ENTRY, LogitsType.FLOAT32).inputs}
WIRE = {TritonType.STRING: "BYTES"}
OTHER_TYPE = {"BYTES": "INT32", "INT32": "FP32", "FP32": "INT32", "FP16": "FP32", "BOOL": "INT32", "UINT64": "INT64"}
FAULT_WORDS = ("the entry failed", "Traceback", "TypeError", "ValueError", "OverflowError", "KeyError", "IndexError")
HUGE = {"INT32": 2**31 - 1, "UINT64": 2**64 - 1, "FP32": 3e38, "FP16": 6e4}
LEAST = {"INT32": -(2**31), "FP32": -3e38, "FP16": -6e4}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("bad")
    write_repository(root, byte_level(), {"draft_len": 4, "reply": "fine"}, {"stall_timeout_s": "20"})
    with serve(root) as running:
        yield running


def tensor_of(name, array, data_type):
    tensor = grpc_client.InferInput(name, list(array.shape), data_type)
    tensor.set_data_from_numpy(array)
    return tensor


def wire_type(name):
    return WIRE.get(TENSORS[name].type, TENSORS[name].type.value)


def good(name, data_type=None, shape=None):
    """A harmless value of a type, in the shape that the entry wants or in another."""
    data_type = data_type or wire_type(name)
    shape = shape or [1, *(1 if size < 0 else size for size in TENSORS[name].dims)]
    if data_type == "BYTES":
        return np.full(shape, b"hello", dtype=np.object_)
    return np.ones(shape, dtype=triton_to_np_dtype(data_type))


def answer(server, changes, left_out=()):
    """The error of a request, or "" and how it finished."""
    sent = {"text_input": (good("text_input"), "BYTES"), "max_tokens": (good("max_tokens"), "INT32"), **changes}
    inputs = [tensor_of(name, array, kind) for name, (array, kind) in sent.items() if name not in left_out]
    stream = Client(server.address.grpc_url)
    try:
        stream.send("bad", inputs)
        found = stream.read("bad")
        return found.error, found.finish_reason
    finally:
        stream.close()


def alive(server):
    found = complete(server.address.grpc_url, text_input="hi", max_tokens=value(9))
    assert (found.error, found.text) == ("", "fine")


def refused(server, changes, left_out=()):
    error, finish = answer(server, changes, left_out)
    assert error and not finish
    assert not [word for word in FAULT_WORDS if word in error], error
    return error


@pytest.mark.parametrize("name", TENSORS)
def test_a_wrong_type_is_refused_by_name(server, name):
    other = OTHER_TYPE[wire_type(name)]
    error = refused(server, {name: (good(name, other), other)})
    assert name in error and "data-type" in error
    alive(server)


@pytest.mark.parametrize("name", TENSORS)
def test_a_wrong_shape_is_refused(server, name):
    shape = list(good(name).shape)
    for wrong in ([2, *shape[1:]], [*shape, 1], shape[1:] or [1, 1, 1]):
        if wrong != shape:
            refused(server, {name: (good(name, None, wrong), wire_type(name))})
    if TENSORS[name].dims == (1,):
        refused(server, {name: (good(name, None, [1, 2]), wire_type(name))})
    alive(server)


@pytest.mark.parametrize("name", [name for name in TENSORS if -1 in TENSORS[name].dims])
def test_an_empty_tensor_is_refused_or_means_nothing(server, name):
    shape = [1, *(0 if size < 0 else size for size in TENSORS[name].dims)]
    error, finish = answer(server, {name: (good(name, None, shape), wire_type(name))})
    assert error or finish
    assert not [word for word in FAULT_WORDS if word in error], error
    alive(server)


@pytest.mark.parametrize("name", [name for name, tensor in TENSORS.items() if wire_type(name) in HUGE])
def test_extreme_numbers_are_refused_or_served_and_never_break_anything(server, name):
    kind = wire_type(name)
    numbers = [HUGE[kind], LEAST.get(kind), *((float("nan"), float("inf")) if kind.startswith("FP") else ())]
    for number in numbers:
        if number is None:
            continue
        array = np.full(good(name).shape, number, dtype=triton_to_np_dtype(kind))
        error, finish = answer(server, {name: (array, kind)})
        assert error or finish
        assert not [word for word in FAULT_WORDS if word in error], (number, error)
    alive(server)


MUST_REFUSE = ["temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "length_penalty"]


@pytest.mark.parametrize("name", MUST_REFUSE)
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_no_number_is_refused_by_name(server, name, number):
    assert name in refused(server, {name: (np.array([[number]], dtype=np.float32), "FP32")})


@pytest.mark.parametrize("name", [name for name in TENSORS if wire_type(name) == "BYTES"])
@pytest.mark.parametrize("raw", [b"a\xff\xfe", b"a\0b", b"\xed\xa0\x80", b"\xf0\x9f\x99"])
def test_bytes_that_are_no_text_are_refused_by_name(server, name, raw):
    array = np.full(good(name).shape, raw, dtype=np.object_)
    error = refused(server, {name: (array, "BYTES")})
    assert name in error
    alive(server)


@pytest.mark.parametrize("name", [name for name, tensor in TENSORS.items() if not tensor.optional])
def test_a_missing_tensor_is_named(server, name):
    assert name in refused(server, {}, left_out=(name,))
    alive(server)


def test_a_huge_prompt_is_refused_and_a_huge_stop_word_served(server):
    huge = np.array([["word " * 400_000]], dtype=np.object_)
    assert "shorten the prompt" in refused(server, {"text_input": (huge, "BYTES")})
    error, finish = answer(server, {"stop_words": (huge, "BYTES")})
    assert error or finish
    alive(server)


@pytest.mark.parametrize("key", ["temprature", "num_draft_token", "stop", "x" * 300, "Text_input", "max_new_tokens"])
def test_an_unknown_name_is_refused_on_both_protocols(server, key):
    for path in ("generate", "generate_stream"):
        status, (body,) = post(
            server.address.http_url,
            f"/v2/models/tensorrt_llm_bls/{path}",
            {"text_input": "hi", "max_tokens": 2, key: 1},
        )
        assert key in body["error"]
        assert (status == 400) or path == "generate_stream"
    assert key in complete(server.address.grpc_url, {key: 1}, text_input="hi", max_tokens=value(2)).error
    alive(server)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"text_input": 5, "max_tokens": 2}', b"\xff\xfe", b'{"max_tokens":{}}']
)
def test_broken_json_is_an_error_of_http(server, body):
    url = f"http://{server.address.http_url}/v2/models/tensorrt_llm_bls/generate"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=20)
    assert caught.value.code in (400, 500)
    assert json.loads(caught.value.read())["error"]
    alive(server)
