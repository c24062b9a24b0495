"""What the entry does when an engine that speculates inside is wrong about its own counts, slow, or never drafts."""

import json
import time

import numpy as np
import pytest
from tests.guests.rig import Client, complete, metric, serve, value, wait_until, write_repository
from tests.guests.tokenizers_made import byte_level

pytestmark = pytest.mark.server
STREAM = np.bool_(True)
TOKENIZER = byte_level()
REPLY = "the quick brown fox jumps over the lazy dog, well"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("faults")
    write_repository(root, TOKENIZER, {"draft_len": 4, "reply": REPLY}, {"stall_timeout_s": "20"})
    with serve(root) as running:
        yield running


def ask(server, **settings):
    values = {"max_tokens": value(100), "stream": STREAM, **settings.pop("values", {})}
    return complete(server.address.grpc_url, text_input=json.dumps(settings), **values)


def counted(server, name, label=""):
    return metric(server.address.metrics_url, f"draftyard_{name}", label)


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_counts_refused_tokens_as_accepted_is_not_believed(server, stream):
    names = ("contradictory_statistics_total", "spec_decode_num_accepted_tokens_total")
    before = [counted(server, name) for name in names]
    answer = ask(server, fault="counts_rejected", accepted=[1], values={"stream": np.bool_(stream)})
    assert (answer.text, answer.finish_reason) == (REPLY, "end_id")
    assert "acceptance_rate" not in answer.last
    assert [counted(server, name) - first for name, first in zip(names, before, strict=True)] == [1, 0]
    assert "which its stream denies" in server.log_path.read_text()


def test_an_engine_that_never_drafts_shows_as_no_draft_at_all(server):
    answer = ask(server, fault="never_drafts")
    assert (answer.text, answer.last["total_draft_tokens"].item()) == (REPLY, 0)
    assert set(answer.counts) == {1}


def test_wrong_tokens_are_passed_on_as_they_are(server):
    """Only a comparison with plain decoding can tell; the entry must neither repair nor hide them."""
    ids = TOKENIZER.encode(REPLY).ids
    answers = [ask(server, wrong_every=3, values={"stream": np.bool_(stream)}) for stream in (True, False)]
    assert answers[0].token_ids == answers[1].token_ids
    wrong = [place for place, pair in enumerate(zip(answers[0].token_ids, ids, strict=False)) if pair[0] != pair[1]]
    assert wrong == list(range(2, len(ids), 3))


def test_the_same_seed_gives_the_same_answer_and_another_another(server):
    seeds = [ask(server, reply=None, seed=seed, values={"max_tokens": value(20)}).token_ids for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_slow_engine_keeps_its_pace_and_its_tokens(server):
    answer = ask(server, step_ms=30, accepted=[2])
    assert answer.text == REPLY
    gaps = np.diff(answer.times)
    assert 0.02 < np.median(gaps) < 0.2
    assert answer.counts[1:4] == [3, 3, 3]


def test_accepted_tokens_are_counted_by_position(server):
    def positions():
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        return [counted(server, name, f'position="{place}"') for place in range(4)]

    time.sleep(0.3)  # positions of earlier requests are told with the next period
    before = positions()
    answer = ask(server, accepted=[3, 1, 0, 2])
    runs = [count - 1 for count in answer.counts[1:]]
    runs[-1] = answer.last["total_accepted_draft_tokens"].item() - sum(runs[:-1])
    wanted = [sum(run > place for run in runs) for place in range(4)]
    assert wanted[0] > wanted[2] > 0
    wait_until(lambda: positions() != before, 3)
    assert [now - first for now, first in zip(positions(), before, strict=True)] == wanted


def test_an_engine_that_ignores_a_stop_is_asked_again_until_it_is_over(server):
    """The client has its answer at once; the entry goes on draining, and the slot is free when the engine ends."""
    client = Client(server.address.grpc_url)
    text = json.dumps({"ids": [50] * 40, "step_ms": 50, "fault": "ignore_stop", "fault_after": 99, "accepted": [0]})
    stops = metric(server.address.metrics_url, "fake_engine_stops_total")
    client.ask("gone", text_input=text, max_tokens=value(40), stream=STREAM)
    next(client.events("gone"))
    client.close(cancel=True)
    wait_until(lambda: metric(server.address.metrics_url, "fake_engine_stops_total") > stops + 2, 5)
    assert counted(server, "requests_in_flight") == 1
    wait_until(lambda: counted(server, "requests_in_flight") == 0, 10)
