import json

import numpy as np
import pytest
from bad_input import BadInput
from entry_request import EntryDefaults, parse_request

DEFAULTS = EntryDefaults(60.0, ("tenant",))


def inputs(**changes):
    values = {"text_input": np.array([[b"hello"]], dtype=object), "max_tokens": np.array([[5]], dtype=np.int32)}
    values.update(changes)
    return {name: array for name, array in values.items() if array is not None}


def number(value, kind=np.int32):
    return np.array([[value]], dtype=kind)


def test_defaults():
    request = parse_request(inputs(), "{}", DEFAULTS)
    assert (request.text, request.max_tokens, request.stream, request.draft_tokens) == ("hello", 5, False, None)
    assert (request.exclude_input, request.chat, request.timeout_s, request.own_end_id) == (True, False, 60.0, None)
    assert set(request.to_preprocessing) == {"QUERY", "REQUEST_OUTPUT_LEN"}
    assert request.to_engine == {}


def test_sampling_goes_to_the_engine_under_its_names():
    request = parse_request(inputs(top_k=number(4), top_p=number(0.5, np.float32), seed=number(7)), "", DEFAULTS)
    assert set(request.to_engine) == {"runtime_top_k", "runtime_top_p", "seed"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_tokens": number(0)}, "max_tokens is 0: send at least 1"),
        ({"max_tokens": number(-4)}, "max_tokens is -4"),
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": np.array([[1, 2]], dtype=np.int32)}, "max_tokens has 2 values"),
        ({"num_draft_tokens": number(-1)}, "num_draft_tokens is -1: send 0 for no speculation"),
        ({"temperature": number(0.0, np.float32)}, "greedy decoding is top_k 1"),
        ({"temperature": number(np.nan, np.float32)}, "temperature is nan"),
        ({"top_p": number(1.5, np.float32)}, "top_p is 1.5"),
        ({"top_k": number(-1)}, "top_k is -1"),
        ({"min_tokens": number(-1)}, "min_tokens is -1"),
        ({"repetition_penalty": number(0.0, np.float32)}, "repetition_penalty is 0"),
        ({"presence_penalty": number(np.inf, np.float32)}, "presence_penalty is inf"),
        ({"beam_width": number(2)}, "beam_width is not offered"),
        ({"return_log_probs": number(True, np.bool_)}, "send false"),
        ({"decoder_text_input": np.array([[b"x"]], dtype=object)}, "decoder_text_input is not offered"),
        ({"text_input": np.array([[b"\xff"]], dtype=object)}, "text_input is not UTF-8"),
        ({"stop_words": np.array([[b"\xff"]], dtype=object)}, "stop_words is not UTF-8"),
        ({"text_input": np.array([[b"a"], [b"b"]], dtype=object)}, "one prompt a request"),
        ({"top_k": np.array([[1], [2]], dtype=np.int32)}, "one prompt a request"),
    ],
)
def test_bad_inputs_say_what_to_change(changes, words):
    with pytest.raises(BadInput, match=words):
        parse_request(inputs(**changes), "{}", DEFAULTS)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"num_draft_token": 3}, "did you mean num_draft_tokens"),
        ({"max_token": 3}, "did you mean max_tokens"),
        ({"qqqq": 3}, "known parameters are chat, timeout_s"),
        ({"chat": "yes"}, "chat is 'yes': send true or false"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": True}, "timeout_s is True"),
        ({"timeout_s": "soon"}, "timeout_s is 'soon'"),
    ],
)
def test_bad_parameters_say_what_to_change(parameters, words):
    with pytest.raises(BadInput, match=words):
        parse_request(inputs(), json.dumps(parameters), DEFAULTS)


@pytest.mark.parametrize(("asked", "given"), [(5, 5.0), ("2.5", 2.5), (600, 60.0)])
def test_a_client_may_only_shorten_its_time(asked, given):
    assert parse_request(inputs(), json.dumps({"timeout_s": asked}), DEFAULTS).timeout_s == given


def test_parameters_of_the_server_and_of_the_operator_pass():
    parameters = {"triton_enable_empty_final_response": True, "tenant": "a", "chat": True}
    assert parse_request(inputs(), json.dumps(parameters), DEFAULTS).chat
