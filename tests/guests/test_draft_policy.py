"""The policy as the entry follows it: load in, draft length out, without flapping."""

import json

import pytest
from draft_policy import DraftPolicy, PolicyFile, PolicyStep
from hypothesis import given
from hypothesis import strategies as st

STEPS = (PolicyStep(4, 3), PolicyStep(8, 0))


def at(policy, load, now=0):
    for _ in range(load - now):
        policy.began()
    for _ in range(now - load):
        policy.left()
    return policy.limit


def test_a_load_that_hovers_at_a_step_does_not_switch():
    policy = DraftPolicy(STEPS, hysteresis=1)
    assert at(policy, 8) == 0
    for _ in range(20):
        assert at(policy, 7, 8) == 0
        assert at(policy, 8, 7) == 0
    assert policy.changes == 2
    assert at(policy, 6, 8) == 3
    assert policy.changes == 3


def test_without_hysteresis_a_step_ends_where_it_begins():
    policy = DraftPolicy(STEPS)
    assert [at(policy, load, load - 1) for load in range(1, 10)] == [None] * 3 + [3] * 4 + [0] * 2
    assert at(policy, 7, 9) == 3
    assert at(policy, 3, 7) is None


@given(
    moves=st.lists(st.booleans(), max_size=80),
    hysteresis=st.integers(0, 3),
    loads=st.lists(st.integers(1, 20), min_size=1, max_size=4, unique=True),
)
def test_a_step_holds_at_its_load_and_is_left_below_the_band(moves, hysteresis, loads):
    steps = [PolicyStep(load, index) for index, load in enumerate(sorted(loads))]
    policy, load = DraftPolicy(steps, hysteresis), 0
    for up in moves:
        if not up and load == 0:
            continue
        load += 1 if up else -1
        policy.began() if up else policy.left()
        entered = [step.max_draft_len for step in steps if step.running <= load]
        held = [step.max_draft_len for step in steps if step.running - hysteresis <= load]
        reached = -1 if policy.limit is None else policy.limit
        assert (entered[-1] if entered else -1) <= reached <= (held[-1] if held else -1)


@pytest.mark.parametrize(
    ("enforced", "asked", "given_length"),
    [(False, None, 3), (False, 0, 0), (False, 2, 2), (False, 9, 9), (True, None, 3), (True, 0, 0), (True, 9, 3)],
)
def test_what_a_request_asks_for_is_what_it_gets_unless_the_policy_is_enforced(enforced, asked, given_length):
    policy = DraftPolicy(STEPS, 0, enforced)
    assert policy.draft_tokens(asked) == asked
    at(policy, 4)
    assert policy.draft_tokens(asked) == given_length


def test_a_file_is_followed_when_it_changes_appears_or_goes(tmp_path):
    path, told = tmp_path / "policy.json", []
    policy = DraftPolicy()
    file = PolicyFile(path, policy, told.append)
    file.load()
    at(policy, 5)
    assert policy.limit is None
    path.write_text(json.dumps({"version": 1, "steps": [{"running": 5, "max_draft_len": 2}]}))
    file.poll()
    assert policy.limit == 2
    path.write_text('{"version": 1, "steps": [{"runn')
    file.poll()
    file.poll()
    assert policy.limit == 2
    assert len(told) == 1
    path.unlink()
    file.poll()
    assert policy.limit is None


def test_a_broken_file_stops_the_load(tmp_path):
    (tmp_path / "policy.json").write_text("[]")
    with pytest.raises(ValueError, match="no JSON object"):
        PolicyFile(tmp_path / "policy.json", DraftPolicy(), print).load()
