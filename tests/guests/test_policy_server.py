"""The entry follows the policy by the number of requests in flight, and a policy that is replaced meanwhile."""

import json

import numpy as np
import pytest
from tests.fakes.engine_pair import packaged_pair, pair_step
from tests.guests.rig import Client, complete, metric, serve, value, wait_until, write_repository
from tests.guests.tokenizers_made import byte_level

from draftyard.doors.triton import embedded_server
from draftyard.nouns.policy import Policy

pytestmark = pytest.mark.server
STREAM = np.bool_(True)
TOKENIZER = byte_level()


def replace_policy(path, *steps, **settings):
    """As an operator does: write beside, then rename."""
    document = {"version": 1, "steps": [{"running": load, "max_draft_len": most} for load, most in steps], **settings}
    path.with_suffix(".new").write_text(json.dumps(document))
    path.with_suffix(".new").rename(path)


@pytest.fixture(scope="module", params=[False, True], ids=["inside", "external"])
def served(request, tmp_path_factory):
    root, policy = tmp_path_factory.mktemp("policy"), tmp_path_factory.mktemp("live") / "live.json"
    replace_policy(policy)
    write_repository(root, TOKENIZER, {"draft_len": 4}, draft=request.param)
    with serve(root, policy) as running:
        yield running, policy


def script(**settings):
    return json.dumps({"reply": "one two three four five six seven", "acceptance_rate": 1.0, **settings})


def limit_is(running, wanted):
    def told():
        return metric(running.address.metrics_url, "draftyard_policy_max_draft_len") == wanted

    return wait_until(told, 5)


def longest_step(running, **values):
    answer = complete(
        running.address.grpc_url, text_input=script(**values.pop("settings", {})), max_tokens=value(60), **values
    )
    assert (answer.error, answer.text) == ("", "one two three four five six seven")
    return max(answer.counts[1:-1])


def test_a_limit_holds_for_what_asks_for_nothing_and_when_enforced_for_all(served):
    running, policy = served
    replace_policy(policy)
    limit_is(running, -1)
    assert longest_step(running, stream=STREAM) == 5
    replace_policy(policy, (1, 1))
    wait_until(lambda: longest_step(running, stream=STREAM) == 2, 5)
    assert longest_step(running, stream=STREAM, num_draft_tokens=value(3)) == 4
    replace_policy(policy, (1, 1), enforced=True)
    wait_until(lambda: longest_step(running, stream=STREAM, num_draft_tokens=value(3)) == 2, 5)
    assert longest_step(running, stream=STREAM, num_draft_tokens=value(0)) == 1


def flying(running, count, **settings):
    client = Client(running.address.grpc_url)
    names = [f"f{index}" for index in range(count)]
    for name in names:
        text = script(**{"ids": [50] * 40, "step_ms": 40, **settings})
        client.ask(name, text_input=text, max_tokens=value(40), stream=STREAM)
    wait_until(lambda: metric(running.address.metrics_url, "draftyard_requests_in_flight") == count, 5)
    return client, names


def test_the_load_decides_and_is_shown(served):
    running, policy = served
    replace_policy(policy, (4, 0))
    limit_is(running, -1)
    client, names = flying(running, 4, draft={"step_ms": 40})
    assert limit_is(running, 0) < 2
    assert longest_step(running, stream=STREAM) == 1
    answers = [client.read(name) for name in names]
    client.close()
    assert {answer.finish_reason for answer in answers} == {"length"}
    limit_is(running, -1)


def test_a_policy_that_is_replaced_drops_no_stream(served):
    running, policy = served
    replace_policy(policy)
    limit_is(running, -1)
    client, names = flying(running, 8, draft={"step_ms": 40})
    changes = metric(running.address.metrics_url, "draftyard_policy_changes_total")
    for most in (0, 2, 1):
        replace_policy(policy, (1, most))
        limit_is(running, most)
    policy.write_text("{")
    assert longest_step(running, stream=STREAM) == 2
    answers = [client.read(name) for name in names]
    client.close()
    assert [(answer.error, answer.finish_reason, answer.token_ids) for answer in answers] == [
        ("", "length", [50] * 40)
    ] * 8
    assert metric(running.address.metrics_url, "draftyard_policy_changes_total") >= changes + 3
    assert "is not followed" in running.log_path.read_text()


@pytest.mark.slow
def test_a_packaged_policy_is_followed_and_part_of_the_key(tmp_path):
    policy = Policy(version=1, steps=({"running": 1, "max_draft_len": 2},))
    repository = packaged_pair(tmp_path, noise=0.0, policy=policy)
    assert json.loads((repository / "policy.json").read_text())["steps"] == [{"running": 1, "max_draft_len": 2}]
    keys = {pair_step(tmp_path / "model", one).key for one in (None, policy, policy.model_copy(update={"steps": ()}))}
    assert len(keys) == 3
    with embedded_server(repository, log_path=tmp_path / "server.log") as running:
        answer = complete(
            running.address.grpc_url, text_input="w5 w6", max_tokens=value(24), end_id=value(-1), stream=STREAM
        )
        assert answer.error == ""
        assert max(answer.counts) == 3
