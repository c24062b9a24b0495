"""The entry's loop over a draft and a target when one of them is slow, wrong, silent or broken."""

import json

import numpy as np
import pytest
from tests.guests.rig import Client, complete, metric, serve, value, wait_until, write_repository
from tests.guests.tokenizers_made import byte_level

pytestmark = pytest.mark.server
STREAM = np.bool_(True)
MIXED = "Grüße, żółw 🙂 and 你好; well STOP there"
TOKENIZER = byte_level()
END = TOKENIZER.token_to_id("<|im_end|>")
IDS = TOKENIZER.encode(MIXED).ids


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    write_repository(root, TOKENIZER, {}, {"stall_timeout_s": "20"}, draft=True)
    with serve(root) as running:
        yield running


def script(**settings):
    return json.dumps({"reply": MIXED, **settings}, ensure_ascii=False)


def ask(server, parameters=None, **values):
    return complete(server.address.grpc_url, parameters, **{"max_tokens": value(200), **values})


def active(server):
    return metric(server.address.metrics_url, "fake_engine_active")


def idle(server):
    wait_until(lambda: active(server) == 0, 5)
    wait_until(lambda: metric(server.address.metrics_url, "draftyard_requests_in_flight") == 0, 5)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("wrong_every", "share"), [(0, 1.0), (1, 0.0), (3, None)])
def test_what_the_draft_guesses_changes_the_steps_and_nothing_else(server, wrong_every, share, stream):
    answer = ask(server, text_input=script(draft={"wrong_every": wrong_every}), stream=np.bool_(stream))
    assert (answer.error, answer.text, answer.finish_reason) == ("", MIXED, "end_id")
    assert answer.token_ids == [*IDS, END]
    drafted, accepted = (answer.last[f"total_{name}draft_tokens"].item() for name in ("", "accepted_"))
    if share is not None:
        # The draft goes on behind the end, which it does not know.
        assert accepted == pytest.approx(share * drafted, abs=4)
    if stream:
        in_last = accepted - sum(count - 1 for count in answer.counts[1:-1])
        assert in_last in (answer.counts[-1] - 1, answer.counts[-1])
    assert drafted > 0


def test_the_first_token_does_not_wait_for_the_draft(server):
    answer = ask(server, text_input=script(draft={"step_ms": 300}), max_tokens=value(3), stream=STREAM)
    assert answer.counts[0] == 1
    assert answer.times[1] - answer.times[0] > 0.25


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_the_draft_length_is_the_requests_up_to_the_engines(server, count):
    answer = ask(server, text_input=script(), num_draft_tokens=value(count), stream=STREAM)
    assert answer.text == MIXED
    assert answer.counts[0] == 1
    assert max(answer.counts) == min(count, 4) + 1
    assert (answer.last["total_draft_tokens"].item() > 0) == (count > 0)


@pytest.mark.parametrize("length", range(1, 8))
def test_the_length_limit_holds_whatever_is_drafted(server, length):
    answer = ask(server, text_input=script(), max_tokens=value(length), stream=STREAM)
    assert (answer.token_ids, answer.finish_reason) == (IDS[:length], "length")
    assert answer.last["num_output_tokens"].item() == length


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_word_inside_an_accepted_run(server, stream):
    text = script(reply=MIXED * 3)
    answer = ask(server, text_input=text, max_tokens=value(400), stop_words=["STOP"], stream=np.bool_(stream))
    assert (answer.text, answer.finish_reason) == (MIXED[: MIXED.index("STOP")], "stop_words")
    idle(server)


def test_an_end_id_inside_an_accepted_run(server):
    answer = ask(server, text_input=script(ids=[40, 41, 42, END, 43, 44, 45]), stream=STREAM)
    assert (answer.token_ids, answer.finish_reason) == ([40, 41, 42, END], "end_id")
    idle(server)


def test_a_draft_that_gives_nothing_is_a_plain_step(server):
    answer = ask(server, text_input=script(draft={"reply": ""}), stream=STREAM, end_id=value(-1), max_tokens=value(9))
    assert (answer.error, answer.token_ids) == ("", IDS[:9])
    assert answer.last["total_draft_tokens"].item() == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"draft": {"fault": "error_first"}}, "the draft model failed: the scripted engine refuses"),
        ({"fault": "error_first", "draft": {"fault": ""}}, "the scripted engine refuses"),
        ({"fault": "no_progress", "draft": {"fault": ""}}, "the target made no progress after 1 of 200 tokens"),
        ({"draft": {"fault": "end_early"}}, "the draft model ended without an answer"),
    ],
)
def test_an_engine_that_fails_ends_the_request_with_an_error(server, settings, words, stream):
    answer = ask(server, text_input=script(**settings), stream=np.bool_(stream))
    assert words in answer.error
    assert answer.finish_reason == ""
    assert ask(server, text_input=script()).text == MIXED
    idle(server)


@pytest.mark.parametrize("who", ["draft", "target"])
def test_a_stalled_engine_ends_at_the_deadline_and_is_freed(server, who):
    fault = {"fault": "stall", "fault_after": 0}
    settings = {"draft": fault} if who == "draft" else {**fault, "draft": {"fault": ""}}
    answer = ask(server, {"timeout_s": 1}, text_input=script(**settings), stream=STREAM)
    assert "timed out after 1 s" in answer.error
    idle(server)


@pytest.mark.parametrize("who", ["draft", "target"])
def test_a_client_that_goes_frees_both_engines(server, who):
    settings = {"draft": {"step_ms": 5000}} if who == "draft" else {"step_ms": 5000, "draft": {"step_ms": 0}}
    client = Client(server.address.grpc_url)
    client.ask("gone", text_input=script(**settings), max_tokens=value(90), stream=STREAM)
    wait_until(lambda: active(server) == 1, 5)
    client.close(cancel=True)
    assert wait_until(lambda: active(server) == 0, 5) < 1
    idle(server)


def test_counted_penalties_are_not_drafted_for(server):
    penalty = {"presence_penalty": value(0.5, np.float32)}
    answer = ask(server, text_input=script(), stream=STREAM, **penalty)
    assert (answer.text, answer.last["total_draft_tokens"].item()) == (MIXED, 0)
    refused = ask(server, text_input=script(), num_draft_tokens=value(2), **penalty)
    assert "num_draft_tokens does not go with presence_penalty" in refused.error


def test_the_counts_of_all_steps_reach_prometheus(server):
    names = ("verification_steps_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total")

    def counts():
        return [metric(server.address.metrics_url, f"draftyard_{name}") for name in names]

    before = counts()
    answer = ask(server, text_input=script(draft={"wrong_every": 3}), stream=STREAM)
    drafted, accepted = (answer.last[f"total_{name}draft_tokens"].item() for name in ("", "accepted_"))
    gained = [after - first for after, first in zip(counts(), before, strict=True)]
    assert gained == [len(answer.texts) - 1, drafted, accepted]
    assert drafted > len(answer.texts) > 5
