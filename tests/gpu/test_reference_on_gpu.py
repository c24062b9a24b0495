"""The reference engine on a CUDA device decodes what it decodes on the CPU, plainly and with each speculator."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_engines import (
    DRAFT_TARGET,
    NGRAM,
    NO_SPECULATION,
    loaded,
    random_llama,
    random_prompts,
    run,
    tokens_of,
    transformers_greedy,
    write_engine,
)

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.generation import GenerationEvent, GenerationRequest

SPECULATORS: Mapping[str, Mapping[str, object]] = {
    "none": NO_SPECULATION,
    "ngram": NGRAM,
    "draft_target": DRAFT_TARGET,
}
OUTPUT_TOKENS = 60


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One engine of each speculator; the draft is the target with some noise, so that it is right now and then."""
    root = tmp_path_factory.mktemp("engines")
    draft = random_llama()
    generator = torch.Generator().manual_seed(1)
    for value in draft.parameters():
        value.data += torch.randn(value.shape, generator=generator) * 0.02
    return {
        kind: write_engine(
            root / kind, random_llama(), speculator=settings, draft=draft if kind == "draft_target" else None
        )
        for kind, settings in SPECULATORS.items()
    }


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [prompt * 2 for prompt in random_prompts(8, lengths=(4, 20))]


def requests_of(prompts: list[list[int]]) -> list[GenerationRequest]:
    return [GenerationRequest(str(place), tuple(prompt), OUTPUT_TOKENS) for place, prompt in enumerate(prompts)]


def on(directory: Path, device: str) -> ReferenceEngine:
    return load_engine(directory, open_tensor_file, device=device, threads=1)


def answers(events: Mapping[str, list[GenerationEvent]]) -> dict[str, list[int]]:
    return {name: tokens_of(found) for name, found in events.items()}


@pytest.mark.parametrize("kind", SPECULATORS)
def test_greedy_tokens_are_those_of_the_cpu(
    directories: dict[str, Path], prompts: list[list[int]], kind: str, device: str
) -> None:
    """Batched and in 32 bit: the order of sums differs between the devices, the most likely tokens do not."""
    expected = answers(run(loaded(directories["none"]), requests_of(prompts)))
    events = run(on(directories[kind], device), requests_of(prompts))
    assert answers(events) == expected
    drafted = sum(found[-1].statistics.drafted for found in events.values() if found[-1].statistics)
    assert (drafted > 0) == (kind != "none")


def test_one_request_at_a_time_gives_the_same(
    directories: dict[str, Path], prompts: list[list[int]], device: str
) -> None:
    engine = on(directories["draft_target"], device)
    together = answers(run(engine, requests_of(prompts)))
    alone = {request.request_id: run(engine, [request])[request.request_id] for request in requests_of(prompts)}
    assert answers(alone) == together


def test_greedy_tokens_are_those_of_transformers(
    directories: dict[str, Path], prompts: list[list[int]], device: str
) -> None:
    found = answers(run(on(directories["none"], device), requests_of(prompts)))
    model = random_llama()
    for request in requests_of(prompts):
        assert found[request.request_id] == transformers_greedy(model, request.input_ids, OUTPUT_TOKENS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_engines_speculate(
    tmp_path: Path, prompts: list[list[int]], dtype: torch.dtype, device: str
) -> None:
    """In 16 bit rounding may part two answers, so only what must hold is asked: whole answers, and accepted drafts."""
    directory = write_engine(tmp_path / "engine", random_llama(), speculator=NGRAM, dtype=dtype)
    events = run(on(directory, device), requests_of(prompts))
    assert {len(tokens) for tokens in answers(events).values()} == {OUTPUT_TOKENS}
    assert sum(found[-1].statistics.accepted for found in events.values() if found[-1].statistics) > 0


def test_weights_and_cache_lie_on_the_device(directories: dict[str, Path], device: str) -> None:
    before = torch.cuda.memory_allocated()
    engine = on(directories["none"], device)
    weights = directories["none"] / "rank0.safetensors"
    assert torch.cuda.memory_allocated() - before > weights.stat().st_size // 2
    del engine
