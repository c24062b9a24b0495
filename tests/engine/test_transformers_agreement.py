"""Acceptance counts against those of transformers: assisted generation and prompt lookup, greedy, one pair."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_engines import (
    DRAFT_TARGET,
    NGRAM,
    loaded,
    random_llama,
    random_prompts,
    run,
    tokens_of,
    write_engine,
)
from transformers import LlamaForCausalLM
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from draftyard.engine.acceptance import Draft
from draftyard.engine.reference import ReferenceEngine
from draftyard.engine.sequence import Sequence as Decoded
from draftyard.nouns.generation import GenerationRequest

TOKENS = 60


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return random_llama()


@pytest.fixture(scope="module")
def draft() -> LlamaForCausalLM:
    """The target with some noise: right about every other time."""
    model, generator = random_llama(), torch.Generator().manual_seed(1)
    for value in model.parameters():
        value.data += torch.randn(value.shape, generator=generator) * 0.02
    return model


def ours(engine: ReferenceEngine, prompt: Sequence[int]) -> tuple[list[int], int]:
    """Output, and verification steps behind the first token."""
    events = run(engine, [GenerationRequest("a", tuple(prompt), TOKENS)])["a"]
    statistics = events[-1].statistics
    assert statistics is not None
    assert statistics.accepted + statistics.steps == TOKENS - 1
    return tokens_of(events), statistics.steps


def theirs(target: LlamaForCausalLM, prompt: Sequence[int], first: int, **settings: object) -> tuple[list[int], int]:
    """The same of transformers, whose first pass already verifies: it begins behind our first token."""
    for model in (target, settings.get("assistant_model", target)):
        model.generation_config.pad_token_id = None  # or the assistant overlooks that token wherever it stands
    passes = []
    hook = target.register_forward_hook(lambda *arguments: passes.append(1))
    ids = torch.tensor([[*prompt, first]])
    try:
        out = target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS - 1, do_sample=False, **settings
        )
    finally:
        hook.remove()
    return out[0, len(prompt) :].tolist(), len(passes)


@pytest.mark.parametrize("length", [2, 4])
def test_assisted_generation_takes_as_many_steps(
    tmp_path: Path, target: LlamaForCausalLM, draft: LlamaForCausalLM, length: int
) -> None:
    """170 steps (length 2) and 166 (length 4) for 236 tokens, on both sides, when this was written.

    A constant draft length and no stop at low confidence: transformers' other schedules draft less or more.
    """
    speculator = {**DRAFT_TARGET, "max_draft_len": length}
    engine = loaded(write_engine(tmp_path / "engine", target, speculator=speculator, draft=draft))
    draft.generation_config.num_assistant_tokens = length
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    steps = []
    for prompt in random_prompts(4):
        text, count = ours(engine, prompt)
        assert theirs(target, prompt, text[0], assistant_model=draft) == (text, count)
        steps.append(count)
    assert sum(steps) < 0.75 * len(steps) * (TOKENS - 1), "the draft is accepted now and then"


class TransformersLookup:
    """Transformers' own prompt lookup as the speculator: it takes the earliest match, Draftyard's the latest."""

    taps: tuple[int, ...] = ()

    def __init__(self, length: int) -> None:
        self._length = length

    def propose(self, sequences: Sequence[Decoded], most: Sequence[int]) -> list[Draft]:
        return [self._lookup(one) for one in sequences]

    def absorb(self, sequence: Decoded, first_position: int, features: torch.Tensor) -> None:
        raise AssertionError("no features were asked for")

    def settle(self, sequence: Decoded, draft: Draft, path: tuple[int, ...]) -> None:
        pass

    def forget(self, sequence: Decoded) -> None:
        pass

    def _lookup(self, sequence: Decoded) -> Draft:
        generator = PromptLookupCandidateGenerator(
            num_output_tokens=self._length,
            max_matching_ngram_size=3,
            max_length=len(sequence.request.input_ids) + TOKENS,
            vocab_size=96,
        )
        found, _ = generator.get_candidates(torch.tensor([sequence.tokens]))
        return Draft(tuple(found[0, len(sequence.tokens) :].tolist()))


@pytest.mark.parametrize("length", [2, 5])
def test_prompt_lookup_takes_as_many_steps(tmp_path: Path, length: int) -> None:
    """110 steps (length 2) and 79 (length 5) for 236 tokens, on both sides, when this was written."""
    target = repetitive_llama()
    engine = loaded(write_engine(tmp_path / "engine", target, speculator={**NGRAM, "max_draft_len": length}))
    engine._proposer = TransformersLookup(length)
    steps = []
    for prompt in random_prompts(4):
        text, count = ours(engine, prompt)
        settings = {"prompt_lookup_num_tokens": length, "max_matching_ngram_size": 3}
        assert theirs(target, prompt, text[0], **settings) == (text, count)
        steps.append(count)
    assert sum(steps) < 0.5 * len(steps) * (TOKENS - 1), "something is found and accepted"


def repetitive_llama() -> LlamaForCausalLM:
    """Mostly the last token decides on the next one, and twelve tokens are far likelier: the text runs in circles."""
    model = random_llama()
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data *= 0.02
        layer.mlp.down_proj.weight.data *= 0.02
    model.lm_head.weight.data[12:] *= 0.2
    return model
