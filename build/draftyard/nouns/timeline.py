"""One token timeline per request: when how many tokens had arrived; every speed figure follows from it."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class Outcome(StrEnum):
    """How a request ended; only `success` is a measurement, the others are kept apart by kind."""

    SUCCESS = "success"
    EMPTY = "empty"
    RESET = "reset"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    ERROR = "error"
    CANCELLED = "cancelled"


class CountSource(StrEnum):
    """Where the number of output tokens comes from; `none` means the server told neither."""

    TOKEN_IDS = "token_ids"
    SERVER_COUNT = "server_count"
    NONE = "none"


class EndMark(StrEnum):
    """What ended a complete answer: the entry's finish reason, or Triton's final flag where it has none."""

    FINISH_REASON = "finish_reason"
    FINAL_FLAG = "final_flag"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One response of a stream: seconds since the request was sent, tokens so far, and its piece of text."""

    time_s: float
    tokens: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What one request gave. `end_s` is when the last response, the error or the time-out was seen.

    `drafted` and `accepted` are the server's totals, None when it did not send them. `count_mismatch` is the
    difference between the ids received and the server's own count, 0 when they agree or one is missing.
    """

    outcome: Outcome
    events: tuple[TokenEvent, ...]
    end_s: float
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    end_mark: EndMark = EndMark.MISSING
    count_source: CountSource = CountSource.NONE
    count_mismatch: int = 0
    input_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    error: str = ""

    @property
    def tokens(self) -> int:
        """Output tokens in all."""
        return self.events[-1].tokens if self.events else 0

    @property
    def text(self) -> str:
        """The pieces of text, joined."""
        return "".join(event.text for event in self.events)


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One input of a request, without the batch dimension; `datatype` in Triton's spelling."""

    name: str
    datatype: str
    values: tuple[str, ...] | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class EntryCall:
    """A request as the server sees it: model, tensors, request parameters."""

    model: str
    tensors: tuple[InputTensor, ...]
    parameters: tuple[tuple[str, str | int | bool], ...] = ()


@dataclass(frozen=True, slots=True)
class EntryRequest:
    """One generation asked of an entry. `num_draft_tokens` None: the engine's own; 0: no speculation.

    Greedy without a `temperature`; with one, tokens are drawn with `seed` from the whole distribution. With `chat`,
    `text` is the JSON list of messages and the server renders the chat template.
    """

    text: str
    max_tokens: int
    chat: bool = False
    model: str = "tensorrt_llm_bls"
    stream: bool = True
    num_draft_tokens: int | None = None
    min_tokens: int | None = None
    stop_words: tuple[str, ...] = ()
    exclude_input: bool = False
    temperature: float | None = None
    seed: int = 0

    def call(self) -> EntryCall:
        """The tensors and parameters of this request; options that are unset are not sent."""
        tensors = [
            InputTensor("text_input", "BYTES", (self.text,)),
            InputTensor("max_tokens", "INT32", (self.max_tokens,)),
            InputTensor("stream", "BOOL", (self.stream,)),
        ]
        if self.num_draft_tokens is not None:
            tensors.append(InputTensor("num_draft_tokens", "INT32", (self.num_draft_tokens,)))
        if self.min_tokens is not None:
            tensors.append(InputTensor("min_tokens", "INT32", (self.min_tokens,)))
        if self.temperature is not None:
            tensors.append(InputTensor("temperature", "FP32", (self.temperature,)))
            tensors.append(InputTensor("top_k", "INT32", (0,)))
            tensors.append(InputTensor("seed", "UINT64", (self.seed,)))
        if self.exclude_input:
            tensors.append(InputTensor("exclude_input_in_output", "BOOL", (True,)))
        if self.stop_words:
            tensors.append(InputTensor("stop_words", "BYTES", self.stop_words))
        return EntryCall(self.model, tuple(tensors), (("chat", True),) if self.chat else ())


class Arm(StrEnum):
    """The sides of a comparison on the same server and the same prompts; `policy` drafts by the load of the moment."""

    BASELINE = "baseline"
    SPECULATIVE = "speculative"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One measured request: which prompt in which arm of which tier; `sent_s` counts from the tier's start.

    In a `turn` every arm asks the same prompts (-1: not known). In an open loop `request_rate` is set and the request
    was due at `scheduled_s`. `draft_tokens` is what was asked for (None: the server's choice), `attempts` counts the
    tries it took: more than one is never part of a figure.
    """

    prompt_id: str
    domain: str
    arm: Arm
    concurrency: int
    block: int
    sent_s: float
    timeline: Timeline
    turn: int = -1
    request_rate: float = 0.0
    scheduled_s: float | None = None
    draft_tokens: int | None = None
    attempts: int = 1
