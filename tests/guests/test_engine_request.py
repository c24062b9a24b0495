import json
import sys
from pathlib import Path

import numpy as np
import pytest
from bad_input import BadInput

from draftyard.nouns.generation import SamplingParameters

sys.path.append(str(Path(__file__).resolve().parents[2] / "triton_repo" / "backends" / "tensorrtllm"))
from engine_request import is_stop, parse_call


def inputs(**changes):
    values = {
        "input_ids": np.array([[5, 6, 7, 0]], dtype=np.int32),
        "input_lengths": np.array([[3]], dtype=np.int32),
        "request_output_len": np.array([[9]], dtype=np.int32),
    }
    values.update(changes)
    return values


def number(value, kind=np.int32):
    return np.array([[value]], dtype=kind)


def test_a_bare_request_is_greedy_and_has_no_end():
    call = parse_call(inputs(), "", "x", True)
    request = call.generation
    assert (request.request_id, request.input_ids, request.max_tokens) == ("x", (5, 6, 7), 9)
    assert (request.end_ids, request.stop_sequences, request.max_draft_len) == ((), (), None)
    assert request.sampling == SamplingParameters()
    assert (call.streaming, call.include_input, call.perf_metrics) == (False, False, False)


def test_everything_that_is_sent_arrives():
    sent = inputs(
        end_id=number(2),
        stop_words_list=np.array([[[8, 9, 3], [2, 3, -1]]], dtype=np.int32),
        bad_words_list=np.array([[[4], [1]]], dtype=np.int32),
        temperature=number(0.5, np.float32),
        runtime_top_k=number(0),
        runtime_top_p=number(0.25, np.float32),
        repetition_penalty=number(1.5, np.float32),
        presence_penalty=number(0.5, np.float32),
        frequency_penalty=number(0.75, np.float32),
        min_tokens=number(2),
        seed=number(2**63, np.uint64),
        streaming=number(True, np.bool_),
        exclude_input_in_output=number(False, np.bool_),
        return_perf_metrics=number(True, np.bool_),
    )
    call = parse_call(sent, json.dumps({"num_draft_tokens": 0}), "x", True)
    request = call.generation
    assert (request.end_ids, request.max_draft_len) == ((2,), 0)
    assert (request.stop_sequences, request.bad_sequences) == (((8, 9), (3,)), ((4,),))
    assert request.sampling == SamplingParameters(0.5, 0, 0.25, 2**63, 1.5, 0.5, 0.75, 2)
    assert (call.streaming, call.include_input, call.perf_metrics) == (True, True, True)


def test_a_draft_from_outside_arrives():
    sent = inputs(draft_input_ids=np.array([[8, 9]], dtype=np.int32))
    assert parse_call(sent, "{}", "x", True).generation.draft_ids == (8, 9)
    assert parse_call(inputs(), "{}", "x", True).generation.draft_ids == ()


def test_an_empty_word_list_is_none_and_a_top_p_of_zero_is_dropped():
    sent = inputs(stop_words_list=np.zeros((1, 2, 0), dtype=np.int32), runtime_top_p=number(0.0, np.float32))
    request = parse_call(sent, "{}", "x", True).generation
    assert request.stop_sequences == ()
    assert request.sampling.top_p == 1.0


@pytest.mark.parametrize(
    ("changes", "parameters", "words"),
    [
        ({"input_ids": np.zeros((2, 4), dtype=np.int32)}, {}, "batches of one prompt"),
        ({"input_lengths": number(5)}, {}, "input_lengths is 5 and input_ids has 4"),
        ({"input_lengths": number(0)}, {}, "input_lengths is 0"),
        ({"beam_width": number(2)}, {}, "beam_width is served with 1 alone"),
        ({"embedding_bias": np.ones((1, 9), dtype=np.float32)}, {}, "embedding_bias is not served"),
        ({"draft_logits": np.ones((1, 2, 9), dtype=np.float32)}, {}, "draft_logits is not served"),
        ({"return_log_probs": number(True, np.bool_)}, {}, "return_log_probs is served with 0 alone"),
        ({}, {"num_draft_tokens": -1}, "num_draft_tokens is -1"),
        ({}, {"num_draft_tokens": "4"}, "num_draft_tokens is '4'"),
    ],
)
def test_what_would_have_to_be_ignored_is_refused(changes, parameters, words):
    with pytest.raises(BadInput, match=words):
        parse_call(inputs(**changes), json.dumps(parameters), "x", True)


def test_harmless_values_and_empty_tensors_pass():
    parse_call(inputs(beam_width=number(1), embedding_bias=np.zeros((1, 0), dtype=np.float32)), "{}", "x", True)


def test_stop_is_seen():
    assert is_stop(inputs(stop=number(True, np.bool_)))
    assert not is_stop(inputs(stop=number(False, np.bool_)))
    assert not is_stop(inputs())
