"""Which drafted tokens stand: exact for greedy and for sampled requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftyard.engine.sampling import adjusted, distribution, draw, needs_history, uniform
from draftyard.nouns.generation import GenerationRequest


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens of one sequence, a chain; `probabilities[i]` [vocabulary] is what token i was drawn from.

    None means that the proposal is certain (n-gram lookup, greedy draft): a point mass on the token.
    """

    token_ids: tuple[int, ...] = ()
    probabilities: tuple[Tensor, ...] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`token_ids` to emit: the `accepted` first tokens of the draft and one of the target's own."""

    token_ids: tuple[int, ...]
    accepted: int


def verify(
    request: GenerationRequest, history: Sequence[int], draft: Draft, logits: Tensor, generator: torch.Generator
) -> Verdict:
    """Accept a chain. `logits` [drafted + 1, vocabulary] are the target's behind `history` and each drafted token."""
    if request.sampling.greedy and not needs_history(request):
        return _leading_run(draft.token_ids, logits.argmax(dim=-1).tolist())

    def row(index: int) -> Tensor:
        return adjusted(logits[index], request, [*history, *draft.token_ids[:index]])

    if request.sampling.greedy:
        return _leading_run(draft.token_ids, [int(row(index).argmax()) for index in range(logits.shape[0])])
    return speculative_sample(draft, lambda index: distribution(row(index), request.sampling), generator)


def _leading_run(drafted: tuple[int, ...], wanted: list[int]) -> Verdict:
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == wanted[accepted]:
        accepted += 1
    return Verdict((*drafted[:accepted], wanted[accepted]), accepted)


def speculative_sample(draft: Draft, target: Callable[[int], Tensor], generator: torch.Generator) -> Verdict:
    """Rejection sampling whose output has the target's distribution exactly.

    Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), algorithm 1; Chen et
    al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023). Token x drawn from q is kept
    with probability min(1, p(x)/q(x)); at the first refusal one token is drawn from max(p - q, 0), normalised; when all
    are kept one more is drawn from p. `target(i)` gives p behind i drafted tokens.
    """
    for index, token in enumerate(draft.token_ids):
        wanted = target(index)
        proposed = None if draft.probabilities is None else draft.probabilities[index]
        likelihood = 1.0 if proposed is None else float(proposed[token])
        if uniform(generator) * likelihood < float(wanted[token]):
            continue
        return Verdict((*draft.token_ids[:index], draw(residual(wanted, proposed, token), generator)), index)
    return Verdict((*draft.token_ids, draw(target(len(draft.token_ids)), generator)), len(draft.token_ids))


def residual(wanted: Tensor, proposed: Tensor | None, token: int) -> Tensor:
    """max(p - q, 0), normalised; q is a point mass on `token` when `proposed` is None."""
    if proposed is None:
        rest = wanted.clone()
        rest[token] = 0.0
    else:
        rest = (wanted - proposed).clamp(min=0.0)
    total = rest.sum()
    # p and q equal up to rounding: a refusal has probability ~0 and any draw from p is right.
    return rest / total if float(total) > 0 else wanted
