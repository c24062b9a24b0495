"""transformers' own generation as an arm: static cache, prompt lookup, a draft model."""

from collections.abc import Mapping, Sequence

import torch
from transformers import LlamaForCausalLM, StoppingCriteria

from benchmarks.engine.arms import Moment, Reading


class _Clock(StoppingCriteria):
    """Notes the time and the length whenever generation has added tokens; stops nothing."""

    def __init__(self) -> None:
        self.noted: list[tuple[Moment, int]] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
        self.noted.append((Moment.now(), input_ids.shape[1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def transformers_speed(
    model: LlamaForCausalLM, prompts: Sequence[Sequence[int]], tokens: int, how: Mapping[str, object]
) -> Reading:
    """Tokens and time of greedy `generate` from the first token on; `how` adds to its arguments."""
    ids, clock = torch.tensor([list(prompt) for prompt in prompts]), _Clock()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        pad_token_id=2,
        stopping_criteria=[clock],
        **how,
    )
    (first, length), (last, longer) = clock.noted[0], clock.noted[-1]
    return Reading.between(first, last, len(prompts) * (longer - length))


STATIC = {"cache_implementation": "static", "disable_compile": True}
