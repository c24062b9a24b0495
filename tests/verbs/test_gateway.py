"""The gateway in front of the scripted entry: exact counts, every fault, and OpenAI's own client."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx2 as httpx
import openai
import pytest
from tests.fakes.running_gateway import MODEL, running_gateway
from tests.fakes.triton_entry.script import Pace, planned_ids, planned_steps, token_text
from tests.fakes.triton_entry.server import scripted_entry
from tests.guests.rig import wait_until
from tests.house.source_map import ROOT

from draftyard.nouns.errors import Failure
from draftyard.nouns.web import FrontLimits
from draftyard.verbs.gateway import GatewayOptions, open_gateway

QUESTION = [{"role": "user", "content": "What floats?"}]
GREEDY = {"temperature": 0}
SLOW = Pace(0.01, 0.05, 0.05)


@pytest.fixture(scope="module")
def entry():
    with scripted_entry() as running:
        yield running


@pytest.fixture(scope="module")
def url(entry):
    with running_gateway(entry.grpc_url) as address:
        yield address


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def text_of(prompt, count):
    return "".join(token_text(one, prompt, place) for place, one in enumerate(planned_ids(prompt, count)))


def ask(url, **fields):
    body = {"model": MODEL, "messages": QUESTION, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)


def events(text):
    return re.findall(r"^data: (.*)$", text, re.MULTILINE)


def test_a_chat_is_answered_whole_and_streamed_alike(client):
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=23, temperature=0)
    assert whole.choices[0].message.content == text_of("What floats?", 23)
    assert whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (2, 23, 25)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=23,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(one.choices[0].delta.content or "" for one in chunks[:-1]) == text_of("What floats?", 23)
    assert [one.choices[0].finish_reason for one in chunks[:-1]][-2:] == [None, "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    # Fewer chunks than tokens: a chunk carries all that a verification step accepted.
    assert len(chunks) < 23
    assert len({one.id for one in chunks}) == 1


@pytest.mark.parametrize("count", [1, 2, 7, 22, 23, 24, 25])
def test_statistics_of_speculation_are_those_of_the_steps(client, count):
    whole = client.completions.create(model=MODEL, prompt="go on", max_tokens=count).model_dump()
    steps = planned_steps(planned_ids("go on", count), True)[1:]
    if not steps:
        assert "metrics" not in whole
        return
    found = whole["metrics"]["speculative_decoding"]
    accepted = [step.accepted for step in steps]
    assert found["acceptance_histogram"] == [accepted.count(j) for j in range(max(accepted) + 1)]
    assert found["num_spec_steps"] == len(steps)
    assert found["num_draft_tokens"] == sum(step.drafted for step in steps)
    assert found["num_accepted_draft_tokens"] == sum(accepted)
    assert found["mean_acceptance_length"] == 1 + sum(accepted) / len(steps)
    assert found["draft_acceptance_rate"] == sum(accepted) / found["num_draft_tokens"]


@pytest.mark.parametrize("usage", [True, False])
def test_statistics_of_a_stream_stand_on_its_last_chunk(url, usage):
    answer = ask(url, max_tokens=9, stream=True, stream_options={"include_usage": usage})
    data = events(answer.text)
    assert data[-1] == "[DONE]"
    chunks = [json.loads(one) for one in data[:-1]]
    assert ["metrics" in one for one in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [one.get("usage") is not None for one in chunks] == [False] * (len(chunks) - 1) + [usage]


def test_without_speculation_there_are_no_statistics(client):
    answer = client.completions.create(
        model=MODEL, prompt="x", max_tokens=6, **GREEDY, extra_body={"num_draft_tokens": 0}
    )
    assert "metrics" not in answer.model_dump()
    assert answer.choices[0].text == text_of("x", 6)


@pytest.mark.parametrize("as_list", [True, False])
def test_a_stop_word_ends_the_answer_and_is_no_part_of_it(client, as_list):
    word = token_text(planned_ids("s", 5)[4], "s", 4)
    answer = client.completions.create(
        model=MODEL, prompt="s", max_tokens=50, stop=[word, "never"] if as_list else word
    )
    assert word not in answer.choices[0].text
    assert answer.choices[0].finish_reason == "stop"


def test_wishes_reach_the_entry_as_its_tensors(entry, client):
    client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=99,
        max_completion_tokens=3,
        temperature=0.5,
        top_p=0.25,
        seed=-1,
        presence_penalty=1,
        frequency_penalty=-1.5,
        extra_body={"top_k": 7, "min_tokens": 9, "ignore_eos": True, "repetition_penalty": 1.25, "num_draft_tokens": 2},
    )
    asked = {name: value[0] for name, value in entry.counters.asked[-1].items() if name != "text_input"}
    assert asked == {
        "max_tokens": 3,
        "stream": True,
        "top_k": 7,
        "temperature": 0.5,
        "top_p": 0.25,
        "seed": 2**64 - 1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.5,
        "repetition_penalty": 1.25,
        "min_tokens": 3,
        "num_draft_tokens": 2,
        "end_id": -1,
    }


def test_what_is_left_out_is_as_in_the_api_and_seeds_differ(entry, client):
    for _ in range(2):
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=1)
    first, second = entry.counters.asked[-2:]
    assert first["seed"] != second["seed"]
    assert {name: value[0] for name, value in first.items() if name not in ("text_input", "seed")} == {
        "max_tokens": 1,
        "stream": True,
        "top_k": 0,
        "temperature": 1.0,
        "top_p": 1.0,
    }
    client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    greedy = entry.counters.asked[-1]
    assert {name: value[0] for name, value in greedy.items() if name != "text_input"} == {
        "max_tokens": 256,
        "stream": True,
        "top_k": 1,
    }


def test_messages_are_rendered_by_the_server(entry, client):
    parts = [{"type": "text", "text": "Grüße "}, {"type": "text", "text": "🎉"}]
    client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}],
        max_tokens=1,
    )
    sent = json.loads(entry.counters.asked[-1]["text_input"][0])
    assert sent == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 🎉"}]


def test_models_are_listed(client):
    assert [one.id for one in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "draftyard"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 2}, "n", "unsupported_value"),
        ({"logprobs": True}, "logprobs", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_value"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
        ({"audio": {}}, "audio", "unsupported_value"),
        ({"stop": list("abcde")}, "stop", "invalid_value"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_value"),
        ({"seed": 1.5}, "seed", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "unsupported_value"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]", "unsupported_value"),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages[0].content", "invalid_value"),
        ({"stream_options": {"x": 1}}, "stream_options", "unsupported_value"),
    ],
)
def test_what_is_not_served_is_refused_by_name(url, fields, param, code):
    answer = ask(url, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"], error["code"]) == (
        *(400, "invalid_request_error", param, code),
    )
    assert error["message"]


def test_neutral_values_and_labels_are_let_through(url):
    neutral = {"n": 1.0, "logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    labels = {"user": "me", "metadata": {"a": "b"}, "store": False, "logit_bias": {}, "parallel_tool_calls": True}
    assert ask(url, max_tokens=1, **neutral, **labels, top_logprobs=None).status_code == 200


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"\xff", 400),
        (b'{"seed": NaN}', 400),
        (b"[" * 100_000, 400),
        (b"x" * 2_000_000, 413),
    ],
)
def test_bodies_that_are_no_requests(url, content, status):
    answer = httpx.post(f"{url}/v1/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.json()["error"]["code"] in ("invalid_json", "request_too_large")


def test_other_paths_methods_and_media_types(url):
    assert httpx.get(f"{url}/v1/other").json()["error"]["code"] == "not_found"
    wrong = httpx.put(f"{url}/v1/models")
    assert (wrong.status_code, set(wrong.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert httpx.post(f"{url}/v1/completions", data={"model": MODEL}).status_code == 415
    prompts = {"model": MODEL, "prompt": ["a", "b"]}
    assert "one prompt a request" in httpx.post(f"{url}/v1/completions", json=prompts).json()["error"]["message"]
    ids = {"model": MODEL, "prompt": [[1, 2]]}
    assert "token ids" in httpx.post(f"{url}/v1/completions", json=ids).json()["error"]["message"]


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="small is served"):
        client.completions.create(model="gpt-4", prompt="x")


@pytest.mark.parametrize(
    ("prompt", "status", "code"),
    [
        ("fault:error_first", 500, "engine_error"),
        ("fault:queue_full", 503, "overloaded"),
        ("fault:refused", 503, "unavailable"),
        ("fault:empty", 500, "engine_error"),
        ("w " * 300, 400, "invalid_value"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_before_the_first_token_is_a_status(url, prompt, status, code, stream):
    answer = httpx.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": prompt, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.parametrize("fault", ["error_midway", "reset", "no_end_mark"])
def test_a_fault_after_the_first_token_ends_the_stream_with_an_error(url, fault):
    body = {"model": MODEL, "prompt": f"fault:{fault}", "stream": True, "max_tokens": 30}
    answer = httpx.post(f"{url}/v1/completions", json=body)
    data = [json.loads(one) for one in events(answer.text)]
    assert answer.status_code == 200
    assert "choices" in data[0]
    assert "error" in data[-1]
    assert "[DONE]" not in answer.text
    whole = httpx.post(f"{url}/v1/completions", json={**body, "stream": False})
    assert whole.status_code in (500, 503)


def test_the_official_client_raises_when_a_stream_breaks(client):
    stream = client.completions.create(model=MODEL, prompt="fault:error_midway", stream=True)
    with pytest.raises(openai.APIError, match="mid-stream"):
        list(stream)


def test_a_client_that_goes_away_ends_the_work(url, entry):
    with scripted_entry(pace=SLOW) as slow, running_gateway(slow.grpc_url) as address:
        for stream in (True, False):
            body = {"model": MODEL, "prompt": "x", "max_tokens": 400, "stream": stream}
            request = httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=0.4)
            with contextlib.suppress(httpx.ReadTimeout), request as answer:
                next(answer.iter_lines())
            wait_until(lambda: slow.counters.in_flight == 0, 5)
        assert 0 < slow.counters.sent_tokens < 100
        page = httpx.get(f"{address}/metrics").text
        assert "draftyard_gateway_disconnects_total 2" in page
        assert "draftyard_gateway_requests_in_flight 0" in page


def test_more_than_the_bound_are_sent_away_and_come_back(url):
    with scripted_entry(pace=SLOW) as slow, running_gateway(slow.grpc_url, FrontLimits(max_in_flight=2)) as address:
        answers = []

        def one():
            answers.append(
                httpx.post(f"{address}/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 9})
            )

        threads = [threading.Thread(target=one) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200, 200, 429, 429, 429, 429]
        assert {answer.headers.get("retry-after") for answer in answers if answer.status_code == 429} == {"1"}
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=5) as client:
            assert client.completions.create(model=MODEL, prompt="x", max_tokens=1).choices[0].text
        assert httpx.get(f"{address}/health/live").status_code == 200


def test_time_is_limited():
    limits = FrontLimits(timeout_s=0.5)
    with scripted_entry() as running, running_gateway(running.grpc_url, limits) as address:
        body = {"model": MODEL, "prompt": "fault:stall", "max_tokens": 50}
        answer = httpx.post(f"{address}/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        answer = httpx.post(f"{address}/v1/completions", json={**body, "stream": True})
        assert json.loads(events(answer.text)[-1])["error"]["code"] == "timeout"
        wait_until(lambda: running.counters.in_flight == 0, 5)


def test_a_body_that_does_not_come_is_given_up():
    limits = FrontLimits(body_timeout_s=0.3)
    with scripted_entry() as running, running_gateway(running.grpc_url, limits) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            lines = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", "Content-Length: 9")
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_keys_are_asked_for_and_never_shown(tmp_path, entry, capfd, caplog):
    first, second = "first-key-0123456789", "second-key-0123456789"
    keys = tmp_path / "keys"
    keys.write_text(f"{first}\n\n{second}\n")
    keys.chmod(0o600)
    opened = open_gateway(GatewayOptions(port=0, key_file=keys))
    opened.listener.close()
    assert first not in repr(opened)
    with running_gateway(entry.grpc_url, key_file=keys) as address:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
        for key, status in ((first, 200), (second, 200), (first[:-1], 401), ("", 401), (f"{first}x", 401)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            answer = httpx.post(f"{address}/v1/completions", json=body, headers=headers)
            assert answer.status_code == status
        assert answer.headers["www-authenticate"] == "Bearer"
        assert httpx.get(f"{address}/v1/models").status_code == 401
        assert httpx.get(f"{address}/health/ready").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{address}/v1", api_key="wrong-key", max_retries=0).models.list()
    shown = "".join(capfd.readouterr()) + caplog.text
    assert first not in shown
    assert second not in shown


def test_a_gateway_for_everybody_needs_keys(tmp_path):
    with pytest.raises(Failure, match="everybody who reaches"):
        open_gateway(GatewayOptions(host="0.0.0.0", port=0))


def test_ready_is_a_token_that_was_made(url):
    assert httpx.get(f"{url}/health/ready").json() == {"status": "ready"}
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with running_gateway(f"127.0.0.1:{port}") as address:
        answer = httpx.get(f"{address}/health/ready", timeout=20)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert httpx.get(f"{address}/health/live").status_code == 200
        refused = ask(address)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")


def test_ready_asks_seldom(entry, url):
    httpx.get(f"{url}/health/ready")
    before = entry.counters.requests
    for _ in range(5):
        assert httpx.get(f"{url}/health/ready").status_code == 200
    assert entry.counters.requests - before <= 1


def test_counts_for_prometheus():
    with scripted_entry() as running, running_gateway(running.grpc_url) as address:
        for count in (5, 12):
            ask(address, max_tokens=count)
        ask(address, n=3)
        page = httpx.get(f"{address}/metrics").text
    steps = [step for n in (5, 12) for step in planned_steps(planned_ids("What floats?", n), True)[1:]]
    assert 'draftyard_gateway_requests_total{kind="chat",outcome="length"} 2' in page
    assert 'draftyard_gateway_requests_total{kind="chat",outcome="refused"} 1' in page
    assert "draftyard_gateway_generation_tokens_total 17" in page
    assert f"draftyard_gateway_verification_steps_total {len(steps)}" in page
    assert f"draftyard_gateway_spec_decode_num_draft_tokens_total {sum(step.drafted for step in steps)}" in page
    assert 'draftyard_gateway_request_seconds_bucket{le="+Inf"} 2' in page


def test_many_streams_at_once_keep_their_own_text(url):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

            async def one(prompt):
                stream = await client.completions.create(
                    model=MODEL, prompt=prompt, max_tokens=40, **GREEDY, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            prompts = [f"prompt {index}" for index in range(12)]
            return dict(zip(prompts, await asyncio.gather(*map(one, prompts)), strict=True))

    found = asyncio.run(all_of_them())
    assert found == {prompt: text_of(prompt, 40) for prompt in found}


def start_command(grpc_url, *words):
    argv = [sys.executable, "-m", "draftyard", "gateway", "--url", grpc_url, "--port", "0", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build")}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[1].removesuffix("/v1")


@pytest.mark.parametrize("drain_s", [20, 1])
def test_sigterm_lets_running_streams_end_within_their_time(drain_s):
    with scripted_entry(pace=SLOW) as slow:
        process, address = start_command(slow.grpc_url, "--drain-s", str(drain_s))
        body = {"model": "tensorrt_llm_bls", "prompt": "x", "max_tokens": 80, "stream": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=20) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{address}/health/ready")
            data = events("\n".join([first, *lines]))
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "stopped\n")
    if drain_s == 20:
        assert data[-1] == "[DONE]"
    else:
        assert json.loads(data[-1])["error"]["code"] == "shutting_down"
