"""What a request to a generating engine is, and what comes back."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended."""

    LENGTH = "length"
    END_ID = "end_id"
    STOP_WORDS = "stop_words"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How the next token is chosen; the defaults are greedy decoding.

    `top_k` 0 means no limit, 1 means greedy; `top_p` 1.0 means no limit; `temperature` is > 0.
    """

    temperature: float = 1.0
    top_k: int = 1
    top_p: float = 1.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.top_k == 1


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue. Token ids; `stop_sequences` and `bad_sequences` are runs of ids.

    `max_draft_len` None means what the engine was built with, 0 means no speculation. `draft_ids` is a draft from
    outside for the tokens right behind the prompt; a request with one ends when it is verified: the tokens that stood
    and one of the target's.
    """

    request_id: str
    input_ids: tuple[int, ...]
    max_tokens: int
    end_ids: tuple[int, ...] = ()
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    sampling: SamplingParameters = SamplingParameters()
    max_draft_len: int | None = None
    draft_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeculationStatistics:
    """Counts of one sequence, all cut at the last emitted token.

    `steps` are verification steps. `drafted_by_position[i]` counts the steps whose draft reached position i (of a
    chain), or had a node at depth i (of a tree, whatever the number of siblings); `accepted_by_position[i]` those in
    which a token there was accepted and emitted. `drafted` and `accepted` are their sums, so that a tree is measured by
    the paths it offers, not by its nodes.
    `accepted_before_cut` also counts what was accepted behind an end id or a stop sequence and never emitted.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    accepted_before_cut: int = 0

    @property
    def acceptance_length(self) -> float | None:
        """Accepted + 1 per verification step (the bonus token counts); None without a step."""
        return None if self.steps == 0 else 1.0 + self.accepted / self.steps


@dataclass(frozen=True, slots=True)
class GenerationEvent:
    """What one engine step gave one sequence; the last event of a sequence has a finish reason."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    statistics: SpeculationStatistics | None = None
    error: str = ""
