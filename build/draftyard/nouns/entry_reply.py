"""What the entry sends back while a request runs, and the ways in which it can fail."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


@dataclass(frozen=True, slots=True)
class EntryReply:
    """One response of the entry's stream: what it adds, and totals where the response carries them.

    `text` is "" while text is held back; `finish_reason` stands on the last response alone.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str = ""
    input_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None


class EntryFault(StrEnum):
    """Why a stream of the entry gave no whole answer."""

    BAD_REQUEST = "bad_request"
    BUSY = "busy"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    FAILED = "failed"


class EntryFailure(Exception):
    """A stream that ended without its end mark; `message` is the server's own, or says what was missing."""

    def __init__(self, fault: EntryFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
