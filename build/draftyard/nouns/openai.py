"""A request of OpenAI's API once it has been read and checked, and how its answer counts."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class OpenAiKind(StrEnum):
    """The two ways to ask for text: messages, or a prompt to go on with."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class OpenAiRequest:
    """What is asked for; None where the request says nothing.

    `text` is the prompt, or the messages as JSON. `greedy` when temperature or top_p leave one token to choose.
    """

    kind: OpenAiKind
    text: str
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    min_tokens: int | None = None
    greedy: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    num_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all parts of one answer have in common; `created` counts seconds since 1970."""

    kind: OpenAiKind
    id: str
    model: str
    created: int
    include_usage: bool


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """Tokens of one answer, and its speculation: how many each verification step accepted (None: not known)."""

    prompt_tokens: int
    completion_tokens: int
    drafted: int = 0
    accepted: int = 0
    accepted_by_step: tuple[int, ...] | None = None
