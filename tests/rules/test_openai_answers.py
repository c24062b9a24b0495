"""How answers count: steps of speculation from streamed tokens, and the text that Prometheus reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftyard.nouns.openai import AnswerCounts, AnswerHead, OpenAiKind
from draftyard.rules.openai_answer import accepted_by_step, last_chunks, speculation, text_chunk, whole_answer
from draftyard.rules.prometheus_text import Histogram, histogram, metric, page

HEAD = AnswerHead(OpenAiKind.CHAT, "id", "m", 5, include_usage=True)


@given(st.lists(st.integers(0, 8), max_size=20), st.booleans())
def test_steps_are_found_again_from_their_tokens(accepted, cut):
    """Each step emits what it accepted and one more; only the last may be cut before that one."""
    tokens = [count + 1 for count in accepted]
    if cut and accepted and accepted[-1]:
        tokens[-1] -= 1
    assert accepted_by_step(tokens, sum(accepted)) == tuple(accepted)


@pytest.mark.parametrize(("tokens", "accepted"), [([], 1), ([3, 2], 5), ([3, 2], 2), ([1, 1], 3)])
def test_totals_that_do_not_fit_give_no_steps(tokens, accepted):
    assert accepted_by_step(tokens, accepted) is None
    assert speculation(AnswerCounts(1, 5, 10, accepted, None)) is None


def test_statistics_by_hand():
    found = speculation(AnswerCounts(3, 11, 16, 6, (2, 0, 3, 1)))
    assert found == {
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.375,
        "acceptance_histogram": [1, 1, 1, 1],
        "num_accepted_draft_tokens": 6,
        "num_draft_tokens": 16,
        "num_spec_steps": 4,
        "num_spec_tokens": None,
    }
    assert speculation(AnswerCounts(3, 11, 0, 0, (0, 0))) is None


def test_no_text_can_leave_its_event():
    for text in ("a\n\ndata: [DONE]\n\n", "\r\n", "\u2028", "🎉"):
        event = text_chunk(HEAD, text)
        assert event.count(b"\n") == 2
        assert b"\r" not in event
        assert json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"]["content"] == text
    assert last_chunks(HEAD, "stop", AnswerCounts(1, 1)).endswith(b"\n\ndata: [DONE]\n\n")


def test_a_whole_answer_has_its_counts():
    body = json.loads(whole_answer(HEAD, "hi", "stop", AnswerCounts(2, 3)))
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert "metrics" not in body


def test_prometheus_text():
    latency = Histogram()
    for value in (0.005, 0.02, 0.02, 1000.0):
        latency.add(value)
    labels = (("kind", 'a"b\\c\n'),)
    text = page([metric("x_total", "counter", "Words", {labels: 2, (): 0.5}), histogram("y_seconds", "More", latency)])
    lines = text.decode().splitlines()
    assert lines[:4] == [
        "# HELP x_total Words",
        "# TYPE x_total counter",
        'x_total{kind="a\\"b\\\\c\\n"} 2',
        "x_total 0.5",
    ]
    assert 'y_seconds_bucket{le="0.01"} 1' in lines
    assert 'y_seconds_bucket{le="300"} 3' in lines
    assert lines[-3:] == ['y_seconds_bucket{le="+Inf"} 4', "y_seconds_sum 1000.045", "y_seconds_count 4"]
