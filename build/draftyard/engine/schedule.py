"""How the tokens of one pass are shared out: certain tokens first, then drafts, then chunks of prompts."""

from collections.abc import Mapping, Sequence

from draftyard.engine.configuration import REBUILD, integer, section
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.speculation_schedule import ScheduleStep, SpeculationSchedule


def speculation_schedule(config: Mapping[str, Json]) -> SpeculationSchedule:
    """The schedule of an engine config: `draftyard.draft_schedule`, a list of {running, max_draft_len}."""
    steps = section(config, "draftyard").get("draft_schedule") or ()
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise Failure("engine config.json: draft_schedule must be a list", REBUILD, ExitCode.ENVIRONMENT)
    found = []
    for step in steps:
        if not isinstance(step, Mapping):
            raise Failure(f"engine config.json: draft_schedule has {step!r}", REBUILD, ExitCode.ENVIRONMENT)
        found.append(ScheduleStep(integer(step, "running"), integer(step, "max_draft_len")))
    return SpeculationSchedule(tuple(found))


def draft_rooms(wishes: Sequence[int], unread: int, spare: int, chunk: int) -> list[int]:
    """Nodes that each decoding sequence may draft, of `wishes`, when `spare` tokens are left in the pass.

    Up to half of them stay free for prompts with `unread` tokens in all, as much as one chunk takes: drafts must never
    keep a prompt from being read.
    """
    left = spare - min(unread, chunk, max(spare + 1, 0) // 2)
    rooms = []
    for wish in wishes:
        rooms.append(max(min(wish, left), 0))
        left -= rooms[-1]
    return rooms


def prompt_chunks(unread: Sequence[int], spare: int, chunk: int) -> list[int]:
    """Tokens that each prompt, in order of arrival, may be read by, at most `chunk` in all and `spare` in the pass."""
    left = min(spare, chunk)
    chunks = []
    for count in unread:
        chunks.append(max(min(count, left), 0))
        left -= chunks[-1]
    return chunks
