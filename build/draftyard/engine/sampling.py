"""From logits to the target's distribution of the next token, and a draw from it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftyard.nouns.generation import GenerationRequest, SamplingParameters


def needs_history(request: GenerationRequest) -> bool:
    """True when logits depend on the tokens before them beyond the network itself."""
    sampling = request.sampling
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
        or sampling.min_tokens > 0
        or bool(request.bad_sequences)
    )


def adjusted(logits: Tensor, request: GenerationRequest, history: Sequence[int]) -> Tensor:
    """Logits [vocabulary] after penalties, the ban of end ids before `min_tokens`, and bad words.

    Repetition divides positive and multiplies negative logits of every token seen, prompt included (Keskar et al.,
    "CTRL"); presence and frequency subtract for generated tokens only, as TensorRT-LLM and OpenAI define them.
    """
    if not needs_history(request):
        return logits
    logits, sampling = logits.clone(), request.sampling
    generated = history[len(request.input_ids) :]
    if sampling.repetition_penalty != 1.0 and history:
        seen = torch.tensor(sorted(set(history)), device=logits.device)
        kept = logits[seen]
        logits[seen] = torch.where(kept > 0, kept / sampling.repetition_penalty, kept * sampling.repetition_penalty)
    if generated and (sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0):
        ids, counts = torch.unique(torch.tensor(generated, device=logits.device), return_counts=True)
        logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts.to(logits.dtype)
    if len(generated) < sampling.min_tokens:
        # A model's further end ids travel as stop sequences of one token.
        ends = [*request.end_ids, *(stop[0] for stop in request.stop_sequences if len(stop) == 1)]
        logits[ends] = float("-inf")
    for bad in request.bad_sequences:
        if len(history) >= len(bad) - 1 and tuple(history[len(history) - len(bad) + 1 :]) == bad[:-1]:
            logits[bad[-1]] = float("-inf")
    return logits


def distribution(logits: Tensor, sampling: SamplingParameters) -> Tensor:
    """Probabilities [vocabulary] after temperature, top-k and top-p, in that order; float32, sums to 1.

    top-p keeps the smallest set of most likely tokens whose mass reaches p (Holtzman et al., "Nucleus sampling").
    """
    logits = logits.float()
    # Largest logit to zero first: however small the temperature, it stays zero and the others go to -inf at worst.
    logits = (logits - logits.max()) / sampling.temperature
    if sampling.top_k > 0 and sampling.top_k < logits.shape[-1]:
        threshold = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < threshold, float("-inf"))
    probabilities = logits.softmax(dim=-1)
    if sampling.top_p < 1.0:
        ordered, order = probabilities.sort(descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        dropped = torch.zeros_like(probabilities, dtype=torch.bool).scatter(0, order, before >= sampling.top_p)
        probabilities = probabilities.masked_fill(dropped, 0.0)
        probabilities = probabilities / probabilities.sum()
    return probabilities


def draw(probabilities: Tensor, generator: torch.Generator) -> int:
    """One token id, by inversion of a uniform draw: the same for the same seed on every device."""
    cumulative = probabilities.double().cumsum(dim=-1)
    point = torch.rand((), generator=generator, dtype=torch.float64).item() * float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, torch.tensor(point, device=cumulative.device), right=True))
    return min(index, int(probabilities.nonzero()[-1]))


def uniform(generator: torch.Generator) -> float:
    """A number in [0, 1)."""
    return float(torch.rand((), generator=generator, dtype=torch.float64).item())
