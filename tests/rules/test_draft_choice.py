"""The client follows a policy exactly as the served entry does."""

import importlib.util
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from draftyard.nouns.policy import Policy, PolicyStep
from draftyard.nouns.prompt import Message, Prompt
from draftyard.rules.cache_busting import busted, request_id
from draftyard.rules.draft_choice import DraftChoice

GUEST = Path(__file__).parents[2] / "triton_repo" / "models" / "tensorrt_llm_bls" / "1" / "draft_policy.py"
SPEC = importlib.util.spec_from_file_location("draft_policy_of_the_entry", GUEST)
assert SPEC is not None
assert SPEC.loader is not None
ENTRY = importlib.util.module_from_spec(SPEC)


def setup_module() -> None:
    import sys

    sys.modules[SPEC.name] = ENTRY  # type: ignore[union-attr]
    SPEC.loader.exec_module(ENTRY)  # type: ignore[union-attr]


@given(
    st.lists(st.integers(1, 12), min_size=0, max_size=4, unique=True),
    st.integers(0, 3),
    st.lists(st.booleans(), max_size=60),
)
def test_both_follow_alike(loads: list[int], hysteresis: int, moves: list[bool]) -> None:
    steps = tuple(PolicyStep(running=load, max_draft_len=6 - index) for index, load in enumerate(sorted(loads)))
    policy = Policy(version=1, steps=steps, hysteresis=hysteresis)
    client, served = DraftChoice(policy), ENTRY.DraftPolicy.read(policy.model_dump_json())
    running = 0
    for more in moves:
        if more or running == 0:
            running += 1
            client.moved(1)
            served.began()
        else:
            running -= 1
            client.moved(-1)
            served.left()
        expected = served.draft_tokens(None)
        assert client.draft_tokens(99) == (99 if expected is None else expected)


def test_a_busted_prompt_begins_with_an_id_of_its_own() -> None:
    prompt = Prompt("p", "chat", "test", "", (Message("system", "Be brief."), Message("user", "Hello")))
    ids = {request_id("cell", arm, turn) for arm in "ab" for turn in range(500)}
    assert len(ids) == 1000
    assert {len(one) for one in ids} == {8}
    marked = busted(prompt, "1a2b3c4d")
    assert marked.messages[0].content == "[request 1a2b3c4d]\nBe brief."
    assert marked.messages[1:] == prompt.messages[1:]
    assert marked.id == prompt.id
