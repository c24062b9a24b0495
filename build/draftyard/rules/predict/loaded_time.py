"""An engine under load: every step decodes one token of each sequence and carries its share of the prompts."""

from dataclasses import dataclass, replace

from draftyard.nouns.prediction import StepCoefficients, StepTerms
from draftyard.rules.predict.step_time import step_ms


@dataclass(frozen=True, slots=True)
class LoadCoefficients:
    """`prefill` multiplies the arithmetic of prompts; `queue` is the share of other prompts that one waits for."""

    step: StepCoefficients
    prefill: float
    queue: float


def loaded_step_ms(decode: StepTerms, prompt: StepTerms, share: float, fitted: LoadCoefficients) -> float:
    """Milliseconds of an average step under load; `prompt` are the terms of one prompt, `share` prompts per step.

    Prompts are mixed into decode steps, so their weights are read once for all tokens; what they add is arithmetic,
    activations and exchange. In a steady state with B sequences of n output tokens, share = B / n for all
    together; one of them sees (B - 1) / n, the prompts of the others.
    """
    added = share * fitted.prefill
    mixed = replace(
        decode,
        compute_ms=decode.compute_ms + added * prompt.compute_ms,
        compute_8bit_ms=decode.compute_8bit_ms + added * prompt.compute_8bit_ms,
        expert_ms=decode.expert_ms + added * prompt.expert_ms,
        activation_ms=decode.activation_ms + share * prompt.activation_ms,
        reduce_ms=decode.reduce_ms + share * prompt.reduce_ms,
    )
    # The attention of prompts runs on tensor cores, that of decoding waits for the cache: no common multiplier.
    return step_ms(mixed, fitted.step) + added * fitted.step.compute * prompt.attention_ms


def first_token_ms(decode: StepTerms, prompt: StepTerms, sequences: float, fitted: LoadCoefficients) -> float:
    """Milliseconds to the first token among `sequences` requests: a step that is under way, the own prompt, others."""
    own = step_ms(prompt, fitted.step) * fitted.prefill
    return step_ms(decode, fitted.step) + own * (1.0 + fitted.queue * (sequences - 1.0))
