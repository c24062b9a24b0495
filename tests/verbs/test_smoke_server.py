"""The checks against the generated repository in a real server, with a scripted engine in the engine's place."""

import asyncio
from pathlib import Path

import pytest
from tests.guests import rig
from tests.guests.tokenizers_made import byte_level

from draftyard.doors.endpoint import Endpoint
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.report_part import Verdict
from draftyard.verbs.smoke import ServedVariant, smoke

REPLY = " Boats float along rivers while leaves settle under bridges slowly." * 80


@pytest.mark.server
def test_the_served_entry_passes_every_check(tmp_path: Path) -> None:
    script = {"reply": REPLY, "step_ms": 5.0, "draft_len": 4, "accepted": [2, 0, 3, 1]}
    rig.write_repository(tmp_path, byte_level(), script)
    variant = ServedVariant("ngram", SpeculatorKind.NGRAM, "0" * 64, tmp_path, 512, 1024, 4)

    async def look(grpc_url: str, metrics_url: str) -> dict[str, Verdict]:
        async with Endpoint(grpc_url) as endpoint:
            found = await smoke(endpoint, metrics_url, variant, ())
        return {check.name: check.verdict for check in found.checks}

    with rig.serve(tmp_path) as running:
        verdicts = asyncio.run(look(running.address.grpc_url, running.address.metrics_url))
    assert set(verdicts.values()) == {Verdict.PASS}, verdicts
    assert len(verdicts) == 22
