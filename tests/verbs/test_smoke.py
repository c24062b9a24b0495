"""Each planted fault is caught by the check that is there for it, and by no other; a sound server passes."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.triton_entry.script import Fault
from tests.fakes.triton_entry.server import Pace, Running, scripted_entry

from draftyard.doors.endpoint import Endpoint
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.prompt import Message, Prompt
from draftyard.nouns.report_part import Verdict
from draftyard.verbs.smoke import ServedVariant, SmokeResult, smoke

VARIANT = ServedVariant("ngram", SpeculatorKind.NGRAM, "0" * 64, Path("repository"), 256, 1024, 4)
PROMPTS = tuple(
    Prompt(f"{domain}-1", domain, "test", "short", (Message("user", f"Say something about {domain}."),))
    for domain in ("chat", "code", "math")
)


def look(server: Running, variant: ServedVariant = VARIANT) -> SmokeResult:
    async def once() -> SmokeResult:
        async with Endpoint(server.grpc_url) as endpoint:
            return await smoke(endpoint, server.metrics_url, variant, PROMPTS)

    return asyncio.run(once())


def names(result: SmokeResult, verdict: Verdict) -> set[str]:
    return {check.name for check in result.checks if check.verdict is verdict}


def test_a_sound_server_passes_every_check() -> None:
    with scripted_entry(pace=Pace(0.001, 0.004, 0.001)) as server:
        result = look(server)
    assert names(result, Verdict.FAIL) == set()
    assert names(result, Verdict.SKIPPED) == set()
    assert len(result.checks) == 22
    assert (result.losslessness.compared, result.losslessness.identical) == (5, 5)
    assert "a client that goes away frees its place" in names(result, Verdict.PASS)


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        (Fault.WRONG_TOKEN, {"speculation changes no token"}),
        (Fault.NEVER_DRAFTS, {"the engine drafts"}),
        (Fault.DRAFTS_WHEN_OFF, {"num_draft_tokens 0 turns speculation off"}),
        (Fault.LEAKS_STOP_WORD, {"a stop word never leaks"}),
        (Fault.CUTS_CHARACTERS, {"text in other scripts arrives whole"}),
        (Fault.STREAMS_OTHER_TEXT, {"streamed and whole answers are the same", "text in other scripts arrives whole"}),
    ],
)
def test_a_planted_fault_is_caught(fault: Fault, caught: set[str]) -> None:
    with scripted_entry(fault, Pace(0.0005, 0.0005, 0.0005)) as server:
        result = look(server)
    failed = names(result, Verdict.FAIL)
    assert failed >= caught if fault is Fault.WRONG_TOKEN else failed == caught


def test_one_wrong_token_in_200_is_located() -> None:
    with scripted_entry(Fault.WRONG_TOKEN, Pace(0, 0, 0)) as server:
        result = look(server)
    assert result.losslessness.divergences
    first = result.losslessness.divergences[0]
    assert first.baseline[0] != first.speculative[0]
    assert first.baseline[1:] == first.speculative[1:]


def test_never_drafting_is_said_in_words() -> None:
    with scripted_entry(Fault.NEVER_DRAFTS, Pace(0, 0, 0)) as server:
        result = look(server)
    check = next(check for check in result.checks if check.name == "the engine drafts")
    assert check.measured == "0 drafted, 0 accepted; never drafts"


def test_work_that_goes_on_after_the_client_left_is_caught() -> None:
    with scripted_entry(Fault.IGNORES_CANCEL, Pace(0.001, 0.010, 0.001)) as server:
        result = look(server, replace(VARIANT, max_seq_len=1024))
    assert names(result, Verdict.FAIL) == {"a client that goes away frees its place"}


def test_without_a_gauge_cancelling_is_not_called_fine() -> None:
    with scripted_entry(pace=Pace(0, 0.001, 0), with_gauge=False) as server:
        result = look(server)
    assert names(result, Verdict.SKIPPED) == {"a client that goes away frees its place"}


def test_a_server_that_takes_anything_is_caught() -> None:
    with scripted_entry(Fault.ACCEPTS_ANYTHING, Pace(0, 0, 0)) as server:
        result = look(server)
    assert {name for name in names(result, Verdict.FAIL) if name.startswith("refuses")} >= {
        "refuses max_tokens 0",
        "refuses a negative max_tokens",
        "refuses an unknown tensor",
        "refuses an unknown parameter",
    }


def test_a_model_that_is_not_ready_is_named() -> None:
    with scripted_entry(not_ready="tensorrt_llm_bls") as server:
        result = look(server)
    assert names(result, Verdict.FAIL) == {"every model is ready"}
    assert "tensorrt_llm_bls" in result.checks[0].measured


def test_plain_decoding_has_no_arms_to_compare() -> None:
    variant = ServedVariant("none", SpeculatorKind.NONE, "1" * 64, Path("repository"), 256, 1024, 0)
    with scripted_entry(Fault.NEVER_DRAFTS, Pace(0, 0.001, 0)) as server:
        result = look(server, variant)
    assert names(result, Verdict.FAIL) == set()
    assert "speculation changes no token" in names(result, Verdict.SKIPPED)
