"""Puts the parts of a step together: a smooth sum of reading and computing, and the time that nothing hides."""

from draftyard.nouns.prediction import StepCoefficients, StepTerms

_US = 1e-3


def step_ms(terms: StepTerms, fitted: StepCoefficients) -> float:
    """Milliseconds of one step.

    (weights^p + compute^p)^(1/p) + cache + attention + activations + all-reduces + layers + sequences + one step;
    each term is its ideal time times the fitted multiplier, or a count times fitted microseconds. The form is the
    roofline with exposed time per layer and step (BLIS trained physics; LIMINAL, arXiv 2507.14397).
    """
    p = fitted.sharpness
    reading = terms.weights_ms * fitted.weights
    computing = (
        terms.compute_ms * fitted.compute
        + terms.compute_8bit_ms * fitted.compute_8bit
        + terms.expert_ms * fitted.expert
    )
    both: float = (reading**p + computing**p) ** (1.0 / p)
    streamed = (
        terms.cache_ms * fitted.cache + terms.attention_ms * fitted.attention + terms.activation_ms * fitted.activation
    )
    return both + streamed + exposed_ms(terms, fitted)


def exposed_ms(terms: StepTerms, fitted: StepCoefficients) -> float:
    """Milliseconds of a step that neither memory nor arithmetic explains: exchange, launches, scheduling."""
    exchange = (
        terms.reduce_ms * fitted.reduce
        + _US * (terms.reduces * fitted.reduce_us + terms.hops * fitted.hop_us)
        + _US * (terms.slow_reduces * fitted.slow_reduce_us + terms.slow_hops * fitted.slow_hop_us)
    )
    return exchange + _US * (
        terms.layers * fitted.layer_us
        + terms.expert_layers * fitted.expert_layer_us
        + fitted.step_us
        + terms.sequences * fitted.sequence_us
    )
