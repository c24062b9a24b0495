"""A policy file: what it may say, and that guests, schema and noun read the same."""

import json
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError
from pydantic import ValidationError as Refusal

from draftyard.doors.policy_files import read_policy, write_policy
from draftyard.nouns.errors import Failure
from draftyard.nouns.policy import Policy
from draftyard.verbs.schema import policy_schema

sys.path.append(str(Path(__file__).resolve().parents[2] / "triton_repo" / "models" / "tensorrt_llm_bls" / "1"))
from draft_policy import DraftPolicy

STEPS = [{"running": 4, "max_draft_len": 2}, {"running": 9, "max_draft_len": 0}]
GOOD = {"version": 1, "steps": STEPS, "hysteresis": 2, "enforced": True, "evidence": "a" * 64}
BAD = [
    {"version": 2},
    {"steps": None},
    {"steps": [{"running": 0, "max_draft_len": 0}]},
    {"steps": [{"running": 1, "max_draft_len": -1}]},
    {"steps": [{"running": 1.5, "max_draft_len": 0}]},
    {"steps": [{"running": True, "max_draft_len": 0}]},
    {"steps": [{"running": 1, "max_draft_len": 0, "more": 1}]},
    {"hysteresis": -1},
    {"enforced": "yes"},
    {"step": []},
]


def test_a_policy_survives_its_file_and_the_guest_follows_it(tmp_path):
    policy = Policy.model_validate(GOOD)
    write_policy(tmp_path / "policy.json", policy)
    assert read_policy(tmp_path / "policy.json") == policy
    assert [policy.schedule.limit(load) for load in (3, 4, 8, 9, 99)] == [None, 2, 2, 0, 0]
    guest = DraftPolicy.read((tmp_path / "policy.json").read_text())
    limits = []
    for _ in range(10):
        limits.append(guest.limit)
        guest.began()
    assert limits == [policy.schedule.limit(load) for load in range(10)]


def test_the_defaults_of_guest_and_noun_are_the_same(tmp_path):
    """A hand-written file leaves keys out; the entry must not follow it otherwise than what packaged it thinks."""
    short = {"version": 1, "steps": STEPS}
    noun = Policy.model_validate(short)
    assert noun.hysteresis == 1
    guest = DraftPolicy.read(json.dumps(short))
    for _ in range(4):
        guest.began()
    guest.left()
    assert guest.limit == 2
    guest.left()
    assert guest.limit is None


@pytest.mark.parametrize("change", BAD)
def test_noun_guest_and_schema_refuse_the_same(change):
    document = {**GOOD, **change}
    with pytest.raises(Refusal):
        Policy.model_validate(document)
    with pytest.raises(ValueError):
        DraftPolicy.read(json.dumps(document))
    with pytest.raises(ValidationError):
        Draft202012Validator(policy_schema()).validate(document)


def test_steps_that_do_not_rise_are_refused(tmp_path):
    document = {**GOOD, "steps": STEPS[::-1]}
    with pytest.raises(ValueError, match="rise"):
        DraftPolicy.read(json.dumps(document))
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(Failure, match=r"p\.json is no policy: .*rise"):
        read_policy(tmp_path / "p.json")
    with pytest.raises(Failure, match="cannot be read"):
        read_policy(tmp_path / "none.json")


def test_the_schema_is_one_and_takes_a_good_policy():
    Draft202012Validator.check_schema(policy_schema())
    Draft202012Validator(policy_schema()).validate(GOOD)
