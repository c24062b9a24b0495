"""Logits for answers that part come from the engine in the repository, and from nowhere else."""

import asyncio
from pathlib import Path

import pytest
from tests.engine.tiny_engines import loaded, random_llama, run, tokens_of, write_engine

from draftyard.doors.endpoint import Endpoint
from draftyard.nouns.generation import GenerationRequest
from draftyard.nouns.prompt import Message, Prompt
from draftyard.nouns.timeline import EntryCall
from draftyard.rules.lossless_verdict import LogitsOf
from draftyard.verbs.replay import PREPROCESSING, EngineReplay

PROMPT = Prompt("p0", "chat", "test", "", (Message("user", "Hello"),))
IDS = (5, 9, 3, 7)


class Preprocessing(Endpoint):
    """Stands for a server whose preprocessing makes these ids of any prompt."""

    async def prompt_ids(self, call: EntryCall) -> tuple[int, ...]:
        assert call.model == PREPROCESSING
        assert dict(call.parameters) == {"chat": True}
        assert [tensor.name for tensor in call.tensors] == ["QUERY", "REQUEST_OUTPUT_LEN"]
        return IDS


def logits_of(repository: Path) -> LogitsOf:
    return asyncio.run(EngineReplay(repository).of(Preprocessing("127.0.0.1:9"), [PROMPT]))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    write_engine(root / "engines" / "tensorrt_llm", random_llama(), speculator={"kind": "ngram", "max_draft_len": 3})
    return root


def test_the_likeliest_token_is_the_one_that_was_emitted(repository: Path) -> None:
    engine = loaded(repository / "engines" / "tensorrt_llm")
    expected = tokens_of(run(engine, [GenerationRequest("a", IDS, 8, max_draft_len=0)])["a"])
    found = logits_of(repository)
    for index, token in enumerate(expected):
        row = found("p0", tuple(expected[:index]))
        assert row is not None
        assert max(range(len(row)), key=row.__getitem__) == token
    assert found("another prompt", ()) is None


def test_another_lanes_engine_has_none(tmp_path: Path) -> None:
    assert logits_of(tmp_path)("p0", ()) is None
    (tmp_path / "engines" / "tensorrt_llm").mkdir(parents=True)
    (tmp_path / "engines" / "tensorrt_llm" / "config.json").write_text('{"build_config": {}}')
    assert logits_of(tmp_path)("p0", ()) is None
