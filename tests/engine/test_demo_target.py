"""The real demo target, where it has been made: text as of transformers, and unchanged by speculation."""

from pathlib import Path

import pytest
import torch
from tests.engine.tiny_engines import NGRAM, NO_SPECULATION, Sizes, loaded, rounded, run, tokens_of, write_engine
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from draftyard.engine.runs import Run
from draftyard.nouns.generation import GenerationRequest

TARGET = Path(__file__).parents[2] / "engines" / "out" / "models" / "smollm2-135m-instruct"
SUBJECTS = ("bread", "rivers", "a sorting function", "JSON lists", "the moon")
TASKS = ("Explain {}.", "Write a short story about {}.", "List five facts about {}.", "Repeat three times: I like {}.")
TOKENS = 256
# Below this distance between the two likeliest tokens, another order of summation may pick the other one.
TIE = 1e-3

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not TARGET.is_dir(), reason="the demo target has not been made (make demo)"),
]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return rounded(AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval(), torch.float16)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    texts = [task.format(subject) for task in TASKS for subject in SUBJECTS]
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
        for text in texts
    ]


@pytest.fixture(scope="module")
def outputs(
    tmp_path_factory: pytest.TempPathFactory, model: LlamaForCausalLM, prompts: list[list[int]]
) -> dict[str, list[list[int]]]:
    """Output of every prompt, without and with n-gram drafts, eight at once, in float16."""
    root, sizes = tmp_path_factory.mktemp("demo"), Sizes()
    found = {}
    for speculator in (NO_SPECULATION, NGRAM):
        name = str(speculator["kind"])
        engine = loaded(write_engine(root / name, model, speculator=speculator, sizes=sizes, dtype=torch.float16))
        requests = [GenerationRequest(str(place), tuple(prompt), TOKENS) for place, prompt in enumerate(prompts)]
        events = run(engine, requests)
        found[name] = [tokens_of(events[request.request_id]) for request in requests]
    return found


def test_twenty_prompts_are_decoded_as_transformers_would(
    model: LlamaForCausalLM, prompts: list[list[int]], outputs: dict[str, list[list[int]]]
) -> None:
    """Each token is the arg max of transformers in float32 behind the same tokens, or as good as tied with it."""
    for prompt, output in zip(prompts, outputs["none"], strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *output[:-1]]])).logits[0, len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert float((logits.amax(-1) - chosen).max()) <= TIE


def test_in_float32_logits_and_tokens_equal_those_of_transformers(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]]
) -> None:
    """Greedy tokens identical over 256 tokens of 20 prompts; logits within 1e-4 all along."""
    plain = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    engine = loaded(write_engine(tmp_path_factory.mktemp("demo") / "fp32", plain, sizes=Sizes(), dtype=torch.float32))
    requests = [GenerationRequest(str(place), tuple(prompt), TOKENS) for place, prompt in enumerate(prompts)]
    events = run(engine, requests)
    for request, prompt in zip(requests, prompts, strict=True):
        output = tokens_of(events[request.request_id])
        whole = [*prompt, *output[:-1]]
        with torch.inference_mode():
            expected = plain(torch.tensor([whole])).logits[0, len(prompt) - 1 :]
            found = engine._decoder.forward([Run(0, 0, tuple(whole), len(prompt) - 1)])
        assert expected.argmax(-1).tolist() == output
        assert float((expected - found).abs().max()) <= 1e-4


def test_speculation_changes_no_token(outputs: dict[str, list[list[int]]]) -> None:
    assert outputs["ngram"] == outputs["none"]
