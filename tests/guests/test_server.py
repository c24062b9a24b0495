"""The guests in a real server, around the scripted engine."""

import json
import os
import signal
import socket

import numpy as np
import pytest
from tests.guests.rig import Client, complete, metric, post, serve, value, wait_until, write_repository
from tests.guests.tokenizers_made import byte_level

pytestmark = pytest.mark.server
STREAM = np.bool_(True)
MIXED = "Grüße, żółw 🙂 and 你好; well STOP there"
GENERATE = "/v2/models/tensorrt_llm_bls/generate"


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level()


@pytest.fixture(scope="module")
def server(tmp_path_factory, tokenizer):
    root = tmp_path_factory.mktemp("served")
    write_repository(root, tokenizer, {"draft_len": 4}, {"stall_timeout_s": "20"})
    with serve(root) as running:
        yield running


def script(**settings):
    return json.dumps(settings, ensure_ascii=False)


def ask(server, parameters=None, **values):
    return complete(server.address.grpc_url, parameters, **values)


def active(server):
    return metric(server.address.metrics_url, "fake_engine_active")


def test_streamed_text_is_the_text_and_each_engine_step_is_one_response(server, tokenizer):
    answer = ask(server, text_input=script(reply=MIXED, accepted=[2, 0]), max_tokens=value(200), stream=STREAM)
    ids = tokenizer.encode(MIXED).ids
    assert (answer.error, answer.finish_reason, answer.text) == ("", "end_id", MIXED)
    assert answer.token_ids == [*ids, tokenizer.token_to_id("<|im_end|>")]
    assert "\ufffd" not in "".join(answer.texts)
    steps, left, pattern = 1, len(ids), [3, 1]
    while left > 0:
        left, steps = left - pattern[(steps - 1) % 2], steps + 1
    assert len(answer.texts) == steps
    assert answer.last["num_output_tokens"].item() == len(ids) + 1
    assert answer.last["total_accepted_draft_tokens"].item() == len(ids) + 1 - steps


def test_unstreamed_is_one_response_with_the_same(server):
    values = {"text_input": script(reply=MIXED), "max_tokens": value(200)}
    streamed, whole = (
        ask(server, stream=STREAM, **values),
        ask(server, **values),
    )
    assert len(whole.texts) == 1
    for name in ("text", "token_ids", "finish_reason"):
        assert getattr(whole, name) == getattr(streamed, name)
    for name in ("total_draft_tokens", "total_accepted_draft_tokens", "acceptance_rate", "num_input_tokens"):
        assert whole.last[name] == streamed.last[name]


def test_draft_length_of_a_request_changes_the_steps_and_nothing_else(server):
    values = {"text_input": script(reply=MIXED, acceptance_rate=1.0), "max_tokens": value(200), "stream": STREAM}
    answers = [ask(server, num_draft_tokens=value(count), **values) for count in (0, 1, 4)]
    assert len({answer.text for answer in answers}) == 1
    assert len({tuple(answer.token_ids) for answer in answers}) == 1
    assert answers[0].last["total_draft_tokens"].item() == 0
    assert len(answers[0].texts) == len(answers[0].token_ids)
    assert len(answers[0].texts) > len(answers[1].texts) > len(answers[2].texts)


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_word_across_chunks_ends_the_engine_too(server, stream):
    text = script(reply=MIXED * 3, accepted=[1, 2, 3], step_ms=5)
    answer = ask(server, text_input=text, max_tokens=value(400), stop_words=["STOP"], stream=np.bool_(stream))
    assert (answer.text, answer.finish_reason) == (MIXED[: MIXED.index("STOP")], "stop_words")
    assert wait_until(lambda: active(server) == 0, 1) < 1


def test_length_and_input_in_output(server):
    prompt = script(reply="hello " * 20)
    answer = ask(
        server,
        text_input=prompt,
        max_tokens=value(4),
        stream=STREAM,
        exclude_input_in_output=np.bool_(False),
    )
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == 4
    assert answer.text.startswith(prompt + "h")


def test_sixteen_streams_over_one_instance_do_not_wait_for_each_other(server):
    client = Client(server.address.grpc_url)
    names = [f"r{index}" for index in range(16)]
    for name in names:
        client.ask(
            name, text_input=script(ids=[50] * 12, step_ms=60, accepted=[0]), max_tokens=value(12), stream=STREAM
        )
    answers = [client.read(name) for name in names]
    client.close()
    assert all(answer.finish_reason == "length" for answer in answers)
    first = max(answer.times[0] for answer in answers)
    assert first < min(answer.times[-1] for answer in answers)
    assert max(a.times[-1] for a in answers) - min(a.times[0] for a in answers) < 16 * 12 * 0.06 / 3


def test_a_cancelled_request_frees_the_engine_in_a_second(server):
    client = Client(server.address.grpc_url)
    client.ask("gone", text_input=script(step_ms=20), max_tokens=value(900), stream=STREAM)
    next(client.events("gone"))
    assert active(server) == 1
    client.close(cancel=True)
    assert wait_until(lambda: active(server) == 0, 5) < 1
    assert wait_until(lambda: metric(server.address.metrics_url, "draftyard_requests_in_flight") == 0, 2) < 1


def test_a_request_that_waits_in_a_slow_step_is_cancelled_as_fast(server):
    client = Client(server.address.grpc_url)
    client.ask("slow", text_input=script(step_ms=5000), max_tokens=value(900), stream=STREAM)
    wait_until(lambda: active(server) == 1, 5)
    client.close(cancel=True)
    assert wait_until(lambda: active(server) == 0, 5) < 1


def test_an_http_client_that_hangs_up_frees_the_engine(server):
    body = json.dumps({"text_input": script(step_ms=20), "max_tokens": 900, "stream": True}).encode()
    host, port = server.address.http_url.split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {GENERATE}_stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert b"200" in connection.recv(4096)
    assert wait_until(lambda: active(server) == 0, 10) < 2


def test_the_time_of_a_request_runs_out_with_an_error_and_a_free_engine(server):
    text = script(fault="stall", fault_after=2)
    answer = ask(server, {"timeout_s": 1}, text_input=text, max_tokens=value(50), stream=STREAM)
    assert "timed out after 1 s" in answer.error
    assert answer.finish_reason == ""
    assert wait_until(lambda: active(server) == 0, 2) < 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error_first", "the scripted engine refuses"),
        ("error_mid_then_end", "failed in mid-stream after 3 of 64 tokens"),
        ("end_early", "failed in mid-stream after 3 of 64 tokens"),
        ("silent_end", "ended early after 36 of 64 tokens"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_breaks_off_is_an_error_and_never_a_short_text(server, tokenizer, fault, words, stream):
    text = script(ids=tokenizer.encode("x").ids * 36, fault=fault, fault_after=3, accepted=[0])
    answer = ask(server, text_input=text, max_tokens=value(64), stream=np.bool_(stream))
    assert words in answer.error
    assert answer.finish_reason == ""


BAD = [
    ({"text_input": ""}, {}, "text_input is empty"),
    ({"text_input": b"a\xff"}, {}, "text_input is not UTF-8"),
    ({"text_input": "a\0b"}, {}, "NUL character"),
    ({"max_tokens": value(0)}, {}, "max_tokens is 0"),
    ({"max_tokens": value(-1)}, {}, "max_tokens is -1"),
    ({"max_tokens": value(2000)}, {}, "ask for at most"),
    ({"text_input": "word " * 2000}, {}, "shorten the prompt"),
    ({"num_draft_tokens": value(-2)}, {}, "num_draft_tokens is -2"),
    ({"temperature": value(-1, np.float32)}, {}, "temperature is -1"),
    ({"beam_width": value(3)}, {}, "beam_width is not offered"),
    ({"end_id": value(10**6)}, {}, "end_id is 1000000"),
    ({"embedding_bias_words": ["a"]}, {}, "embedding_bias_words has 1 entries"),
    ({}, {"num_draft_token": 1}, "did you mean num_draft_tokens"),
    ({}, {"chat": True}, "JSON list"),
    ({}, {"timeout_s": "soon"}, "timeout_s"),
]


@pytest.mark.parametrize(("values", "parameters", "words"), BAD)
def test_a_bad_request_is_told_what_to_change_and_the_server_lives_on(server, values, parameters, words):
    answer = ask(server, parameters, **{"text_input": "hi", "max_tokens": value(2), **values})
    assert words in answer.error
    assert ask(server, text_input="hi", max_tokens=value(2)).finish_reason == "length"


def test_an_engine_that_goes_on_after_the_end_is_stopped(server, tokenizer):
    end = tokenizer.token_to_id("<|im_end|>")
    text = script(ids=[40, 41, end, *[42] * 90], step_ms=20)
    answer = ask(server, text_input=text, max_tokens=value(93), stream=STREAM)
    assert (answer.finish_reason, answer.token_ids) == ("end_id", [40, 41, end])
    assert wait_until(lambda: active(server) == 0, 5) < 1


def test_many_short_streams_do_not_harm_the_server(server):
    client = Client(server.address.grpc_url)
    for batch in range(8):
        names = [f"{batch}-{index}" for index in range(24)]
        for name in names:
            text = script(seed=batch, step_ms=2)
            client.ask(name, text_input=text, max_tokens=value(12), stream=STREAM, end_id=value(-1))
        assert [client.read(name).finish_reason for name in names] == ["length"] * len(names)
    client.close()
    assert wait_until(lambda: metric(server.address.metrics_url, "draftyard_requests_in_flight") == 0, 5) < 2


def test_generate_answers_once_and_an_unknown_key_is_refused(server):
    status, (body,) = post(server.address.http_url, GENERATE, {"text_input": script(reply="ok fine"), "max_tokens": 20})
    assert (status, body["text_output"], body["finish_reason"]) == (200, "ok fine", "end_id")
    status, (body,) = post(server.address.http_url, GENERATE, {"text_input": "hi", "max_tokens": 2, "stop_word": "x"})
    assert status == 400
    assert "did you mean stop_words?" in body["error"]
    body = {"text_input": script(reply="ok fine"), "max_tokens": 20, "stream": True}
    _, events = post(server.address.http_url, GENERATE + "_stream", body)
    assert "".join(event["text_output"] for event in events) == "ok fine"


def test_chat_goes_through_the_models_template(server, tokenizer):
    messages = json.dumps([{"role": "user", "content": "hello"}])
    answer = ask(server, {"chat": True}, text_input=messages, max_tokens=value(3))
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert answer.last["num_input_tokens"].item() == len(tokenizer.encode(rendered).ids)


def test_counters_follow_the_requests(server):
    names = ("requests_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total")
    names = (*names, "verification_steps_total", "generation_tokens_total", "prompt_tokens_total")

    def counts():
        return {name: metric(server.address.metrics_url, f"draftyard_{name}") for name in names}

    def ended(outcome):
        return metric(server.address.metrics_url, "draftyard_requests_total", f'"{outcome}"')

    before, lengths, refused = counts(), ended("length"), ended("refused")
    answer = ask(server, text_input="count me", max_tokens=value(30), stream=STREAM)
    ask(server, text_input="", max_tokens=value(3))
    gained = {name: number - before[name] for name, number in counts().items()}
    assert (ended("length") - lengths, ended("refused") - refused) == (1, 1)
    assert gained == {
        "requests_total": 2,
        "spec_decode_num_draft_tokens_total": answer.last["total_draft_tokens"].item(),
        "spec_decode_num_accepted_tokens_total": answer.last["total_accepted_draft_tokens"].item(),
        "verification_steps_total": len(answer.texts) - 1,
        "generation_tokens_total": 30,
        "prompt_tokens_total": answer.last["num_input_tokens"].item(),
    }


def test_the_server_goes_in_peace_after_streams_and_cancels(tmp_path, tokenizer):
    write_repository(tmp_path, tokenizer, {})
    with serve(tmp_path) as running:
        client = Client(running.address.grpc_url)
        client.ask("gone", text_input=script(step_ms=20), max_tokens=value(900), stream=STREAM)
        next(client.events("gone"))
        client.close(cancel=True)
        wait_until(lambda: active(running) == 0, 5)
        ask(running, text_input="hi", max_tokens=value(20), stream=STREAM)
    assert running.wait_for_exit(1) == 0
    assert "Exit timeout" not in running.log_path.read_text()
    assert not list(tmp_path.rglob("core*"))


@pytest.fixture
def short_fuse(tmp_path, tokenizer):
    write_repository(tmp_path, tokenizer, {}, {"stall_timeout_s": "1"})
    with serve(tmp_path) as running:
        yield running
        os.kill(running.pid, signal.SIGKILL)  # it would wait for the request that it lost


@pytest.mark.slow
def test_an_error_that_the_server_loses_and_a_dead_engine_still_reach_the_client(short_fuse):
    text = script(reply=MIXED, fault="error_mid", fault_after=3)
    answer = ask(short_fuse, text_input=text, max_tokens=value(64), stream=STREAM)
    assert "the engine sent nothing for 1 s" in answer.error
    answer = ask(short_fuse, text_input=script(reply=MIXED), max_tokens=value(64))
    assert answer.text == MIXED
    dead = ask(short_fuse, {"timeout_s": 3}, text_input=script(fault="crash"), max_tokens=value(64))
    assert dead.error
