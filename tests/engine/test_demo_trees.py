"""Trees on the real demo target, where it has been made: text of plain decoding, or parted from it at a tie."""

from pathlib import Path

import pytest
import torch
from tests.engine.oracle_proposer import OracleProposer
from tests.engine.tiny_engines import Sizes, loaded, rounded, run, tokens_of, write_engine
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftyard.nouns.generation import GenerationRequest
from draftyard.rules.near_ties import FLOAT32_TIE, DivergenceCause, explain_divergence

TARGET = Path(__file__).parents[2] / "engines" / "out" / "models" / "smollm2-135m-instruct"
SUBJECTS = ("bread", "rivers", "a sorting function", "the moon")
TASKS = ("Explain {}.", "Write a short story about {}.")
TOKENS, NODES = 96, 12

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not TARGET.is_dir(), reason="the demo target has not been made (make demo)"),
]


class LenientOracle(OracleProposer):
    """Behind a tie the text is another one, and what was right is so no longer."""

    def settle(self, *arguments: object) -> None:
        self.accepted += len(arguments[2])  # type: ignore[arg-type]


def requests() -> list[GenerationRequest]:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    texts = [task.format(subject) for task in TASKS for subject in SUBJECTS]
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
        for text in texts
    ]
    return [GenerationRequest(str(place), tuple(prompt), TOKENS) for place, prompt in enumerate(prompts)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_trees_part_from_plain_decoding_at_ties_alone(tmp_path: Path, dtype: torch.dtype) -> None:
    model = rounded(AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval(), torch.float16)
    speculator = {"kind": "ngram", "max_draft_len": NODES, "min_match": 1, "max_match": 3}
    engine = loaded(write_engine(tmp_path / "engine", model, speculator=speculator, sizes=Sizes(), dtype=dtype))
    asked = requests()
    plain = [GenerationRequest(one.request_id, one.input_ids, TOKENS, max_draft_len=0) for one in asked]
    truths = {name: tokens_of(events) for name, events in run(engine, plain).items()}
    oracle = LenientOracle(truths, 49152, wrong=6)
    engine._proposer = oracle
    found = {name: tokens_of(events) for name, events in run(engine, asked).items()}
    for one in plain:
        expected = truths[one.request_id]

        def logits_at(index: int, one: GenerationRequest = one, expected: list[int] = expected) -> list[float]:
            return engine.replay(one, [*expected[:index], 0])[index].tolist()

        parted = explain_divergence(expected, found[one.request_id], logits_at, FLOAT32_TIE)
        assert parted is None or parted.cause is DivergenceCause.TIE, parted
    assert oracle.accepted > 0.4 * len(asked) * TOKENS
