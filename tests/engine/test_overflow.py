"""Sums that leave a type's range end a request with a word about the weights' type, and never as a token."""

from pathlib import Path

import torch
from tests.engine.tiny_engines import loaded, random_llama, run, write_engine

from draftyard.nouns.generation import FinishReason, GenerationRequest


def test_logits_beyond_the_range_are_no_text(tmp_path: Path) -> None:
    """QwenLM/Qwen3#868: every prompt answered by one repeated token, because activations became infinite."""
    model = random_llama()
    with torch.no_grad():
        model.model.norm.weight.mul_(1e3)
        model.lm_head.weight.fill_(3e38)
    engine = loaded(write_engine(tmp_path / "engine", model))
    events = run(engine, [GenerationRequest("a", (5, 6, 7), 8)])["a"]
    assert [event.finish_reason for event in events] == [FinishReason.ERROR]
    assert events[0].token_ids == ()
    assert "no finite numbers: the weights do not fit their type" in str(events[0].error)
    assert not engine.has_work
