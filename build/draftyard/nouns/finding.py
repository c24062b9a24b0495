"""One thing that was looked at on a machine, and what to do about it."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class Finding(StrEnum):
    """How a check ended: `missing` fails the command, `warning` does not."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `hint` says what to do, empty when nothing needs doing."""

    name: str
    finding: Finding
    what: str
    hint: str = ""
