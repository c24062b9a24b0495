"""A draft and a target, two engines in one real server: the entry's loop over them changes no token."""

import numpy as np
import pytest
from tests.fakes.engine_pair import packaged_pair
from tests.guests.rig import Client, complete, value

from draftyard.doors.triton import embedded_server

pytestmark = [pytest.mark.server, pytest.mark.slow]
STREAM = np.bool_(True)
PROMPTS = ("w5 w6 w7", "a a a w9", "w30 w31 w32 w33 w34 w35")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    with embedded_server(packaged_pair(root, noise=0.01), log_path=root / "server.log") as running:
        yield running


def ask(server, **values):
    return complete(server.address.grpc_url, **{"max_tokens": value(24), "end_id": value(-1), **values})


@pytest.mark.parametrize("prompt", PROMPTS)
def test_streamed_is_unstreamed_is_plain(server, prompt):
    plain = ask(server, text_input=prompt, stream=STREAM, num_draft_tokens=value(0))
    streamed = ask(server, text_input=prompt, stream=STREAM)
    whole = ask(server, text_input=prompt)
    assert plain.error == streamed.error == whole.error == ""
    assert plain.token_ids == streamed.token_ids == whole.token_ids
    assert plain.text == streamed.text == whole.text
    assert (len(plain.texts), plain.last["total_draft_tokens"].item()) == (24, 0)
    accepted, drafted = (streamed.last[f"total_{name}draft_tokens"].item() for name in ("accepted_", ""))
    assert 0 < accepted < drafted
    assert len(streamed.texts) == 24 - accepted
    assert len(whole.texts) == 1
    assert whole.last["total_accepted_draft_tokens"] == streamed.last["total_accepted_draft_tokens"]
    assert streamed.last["acceptance_rate"].item() == pytest.approx(accepted / drafted)


def test_penalties_over_the_whole_text_and_a_least_length_change_no_token(server):
    wishes = {"repetition_penalty": value(1.3, np.float32), "min_tokens": value(9), "end_id": value(7)}
    plain = ask(server, text_input=PROMPTS[0], num_draft_tokens=value(0), stream=STREAM, **wishes)
    drafted = ask(server, text_input=PROMPTS[0], stream=STREAM, **wishes)
    assert (plain.token_ids, plain.finish_reason) == (drafted.token_ids, drafted.finish_reason)
    assert drafted.last["total_draft_tokens"].item() > 0


def test_a_sampled_request_is_repeatable_and_the_seeds_differ_by_step(server):
    wishes = {"top_k": value(20), "temperature": value(1.5, np.float32), "stream": STREAM}
    first, again = (ask(server, text_input=PROMPTS[0], seed=value(7, np.uint64), **wishes) for _ in range(2))
    other = ask(server, text_input=PROMPTS[0], seed=value(8, np.uint64), **wishes)
    assert first.error == ""
    assert first.token_ids == again.token_ids != other.token_ids
    assert first.last["total_draft_tokens"].item() > 0


def test_perf_metrics_cover_all_steps(server):
    answer = ask(server, text_input=PROMPTS[0], stream=STREAM, return_perf_metrics=np.array([[True]]))
    times = [answer.last[f"{name}_time_ns"].item() for name in ("arrival", "first_token", "last_token")]
    assert times == sorted(times)
    assert times[2] - times[1] > 1e6


def test_many_requests_share_both_engines(server):
    truth = {prompt: ask(server, text_input=prompt, num_draft_tokens=value(0)).token_ids for prompt in PROMPTS}
    client = Client(server.address.grpc_url)
    names = [f"{index}" for index in range(18)]
    for index, name in enumerate(names):
        prompt = PROMPTS[index % 3]
        client.ask(name, text_input=prompt, max_tokens=value(24), end_id=value(-1), stream=STREAM)
    answers = [client.read(name, 60) for name in names]
    client.close()
    assert [answer.token_ids for answer in answers] == [truth[PROMPTS[index % 3]] for index in range(18)]
