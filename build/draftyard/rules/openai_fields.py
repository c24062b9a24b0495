"""The fields of a request in OpenAI's API: what is served, what may be said without effect, what is refused."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from draftyard.nouns.openai import OpenAiKind
from draftyard.nouns.web import ApiProblem

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_STOPS = 4
ROLES = ("system", "developer", "user", "assistant")
# A NUL character would end the text in the engine's host.
NO_NUL = r"^[^\x00]*$"


@dataclass(frozen=True, slots=True)
class NumberField:
    """A number within bounds, both included; `whole` for integers."""

    name: str
    low: float
    high: float
    whole: bool
    words: str

    def read(self, value: object) -> float | int:
        """The value; `ApiProblem` when it is none or out of bounds."""
        kind = "an integer" if self.whole else "a number"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_value(self.name, f"{self.name} must be {kind}")
        # JSON knows one kind of number: 5.0 is an integer.
        if self.whole and isinstance(value, float) and not value.is_integer():
            raise bad_value(self.name, f"{self.name} must be {kind}")
        if not self.low <= value <= self.high:
            raise bad_value(self.name, f"{self.name} must lie between {self.low:.10g} and {self.high:.10g}")
        return int(value) if self.whole else float(value)

    def schema(self) -> dict[str, object]:
        """As JSON schema."""
        bounds: list[float] = [int(self.low), int(self.high)] if self.whole else [self.low, self.high]
        kind = "integer" if self.whole else "number"
        return {"type": [kind, "null"], "minimum": bounds[0], "maximum": bounds[1], "description": self.words}


NUMBERS = (
    NumberField("temperature", 0, 2, False, "1 when left out; below 0.001 the likeliest token is taken"),
    NumberField("top_p", 0, 1, False, "1 when left out; below 0.000001 the likeliest token is taken"),
    NumberField("presence_penalty", -2, 2, False, "0 when left out"),
    NumberField("frequency_penalty", -2, 2, False, "0 when left out"),
    NumberField("seed", -INT64_MAX - 1, INT64_MAX, True, "chosen at random when left out"),
    NumberField("max_tokens", 1, INT32_MAX, True, "the gateway's own limit when left out"),
    NumberField("top_k", 0, INT32_MAX, True, "an addition: so many likeliest tokens may be taken; 0 for all"),
    NumberField("min_tokens", 0, INT32_MAX, True, "an addition: end tokens count from here on; at most max_tokens"),
    NumberField("repetition_penalty", 0.01, 100, False, "an addition: 1 when left out"),
    NumberField("num_draft_tokens", 0, 1024, True, "an addition: 0 turns speculation off for this request"),
)
CHAT_NUMBERS = (
    *NUMBERS,
    NumberField("max_completion_tokens", 1, INT32_MAX, True, "the newer name of max_tokens, and counts before it"),
)
TOKEN_NUMBERS = ("max_tokens", "max_completion_tokens", "min_tokens")
FLAGS: Mapping[str, str] = {
    "stream": "answer in server-sent events, ended by [DONE]",
    "ignore_eos": "an addition: go on behind end tokens, up to max_tokens",
}


@dataclass(frozen=True, slots=True)
class FixedField:
    """A field that may only ask for what is done anyway: null, or one of the values."""

    values: tuple[object, ...]
    why: str

    def allows(self, value: object) -> bool:
        """As JSON compares: 1.0 is 1, and true is not."""
        return value is None or any(
            isinstance(value, bool) is isinstance(one, bool) and value == one for one in self.values
        )

    def schema(self) -> dict[str, object]:
        """As JSON schema."""
        return {"enum": [*self.values, None], "description": self.why}


_ONE_ANSWER = FixedField((1,), "one answer a request: send several requests, they are decoded together")
_NO_PROBABILITIES = "probabilities of tokens are not returned"
_NO_TOOLS = "tools are not called"
_TEXT_ONLY = "text in, text out"

_FIXED: Mapping[str, FixedField] = {
    "n": _ONE_ANSWER,
    "logit_bias": FixedField(({},), "tokens are not favoured"),
    "store": FixedField((False,), "answers are not kept"),
    "service_tier": FixedField(("auto", "default"), "there is one tier"),
}
CHAT_FIXED: Mapping[str, FixedField] = {
    **_FIXED,
    "logprobs": FixedField((False,), _NO_PROBABILITIES),
    "top_logprobs": FixedField((0,), _NO_PROBABILITIES),
    "tools": FixedField(([],), _NO_TOOLS),
    "tool_choice": FixedField(("none", "auto"), _NO_TOOLS),
    "parallel_tool_calls": FixedField((True, False), _NO_TOOLS),
    "functions": FixedField(([],), _NO_TOOLS),
    "function_call": FixedField(("none", "auto"), _NO_TOOLS),
    "response_format": FixedField(({"type": "text"},), "answers are not held to a format"),
    "modalities": FixedField((["text"],), _TEXT_ONLY),
    "audio": FixedField((), _TEXT_ONLY),
    "prediction": FixedField((), "what the speculator proposes is its own affair"),
    "reasoning_effort": FixedField((), "the model reasons as it does"),
    "verbosity": FixedField((), "the model is as brief as it is"),
    "web_search_options": FixedField((), "nothing is searched"),
}
COMPLETION_FIXED: Mapping[str, FixedField] = {
    **_FIXED,
    "best_of": _ONE_ANSWER,
    "echo": FixedField((False,), "the prompt is not repeated"),
    "logprobs": FixedField((), _NO_PROBABILITIES),
    "suffix": FixedField(("",), "text is not filled in"),
}
# They ask nothing of the answer; whoever sends them keeps books.
LABELS = ("user", "safety_identifier", "prompt_cache_key")
STREAM_OPTIONS = {"include_usage": "tokens are counted in a last chunk of their own"}


def fixed_fields(kind: OpenAiKind) -> Mapping[str, FixedField]:
    """The fields that may only ask for what is done anyway."""
    return CHAT_FIXED if kind is OpenAiKind.CHAT else COMPLETION_FIXED


def number_fields(kind: OpenAiKind, most_tokens: int) -> tuple[NumberField, ...]:
    """The numbers that a request may set; it may ask for `most_tokens` tokens."""
    fields = CHAT_NUMBERS if kind is OpenAiKind.CHAT else NUMBERS
    return tuple(replace(field, high=most_tokens) if field.name in TOKEN_NUMBERS else field for field in fields)


def known_fields(kind: OpenAiKind) -> tuple[str, ...]:
    """Every field that a request may have."""
    content = "messages" if kind is OpenAiKind.CHAT else "prompt"
    numbers = tuple(field.name for field in number_fields(kind, INT32_MAX))
    own = ("model", content, "stop", "stream_options", "metadata")
    return (*own, *numbers, *FLAGS, *fixed_fields(kind), *LABELS)


def bad_value(param: str, message: str) -> ApiProblem:
    """A field with a value that makes no sense."""
    return ApiProblem(400, message, param=param, code="invalid_value")


def not_served(param: str, message: str) -> ApiProblem:
    """A field that makes sense and asks for something that is not done."""
    return ApiProblem(400, message, param=param, code="unsupported_value")
