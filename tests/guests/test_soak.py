"""A short soak of the real server; `python -m benchmarks.soak` is the long one."""

import asyncio
from pathlib import Path

import pytest
from benchmarks.soak.clients import Entry
from benchmarks.soak.load import Plan, soak
from benchmarks.soak.memory import processes_of, slope_per_minute
from tests.engine.tiny_engines import NGRAM, Sizes, random_llama, write_engine
from tests.guests.rig import plan as repository_plan
from tests.guests.tokenizers_made import byte_level, write_directory

from draftyard.doors.repository_files import write_model_config
from draftyard.doors.shipped_files import copy_guest
from draftyard.doors.triton import embedded_server
from draftyard.rules.triton_repository import draw_repository


def write_soak_repository(root: Path) -> Path:
    """A random little model behind a tokenizer of bytes: its text is full of characters that are split and broken."""
    tokenizer = byte_level()
    write_directory(tokenizer, root / "tokenizer")
    sizes = Sizes(max_batch_size=8, max_input_len=512, max_seq_len=1024, max_num_tokens=1024, kv_cache_tokens=8192)
    model = random_llama(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=2048)
    write_engine(root / "engines" / "tensorrt_llm", model, speculator=NGRAM, sizes=sizes)
    for config in draw_repository(repository_plan(tokenizer)).models:
        if config.backend == "python":
            copy_guest(config.name, root / "models" / config.name / "1")
        write_model_config(root / "models", config)
    return root


@pytest.mark.server
@pytest.mark.slow
def test_a_soak_finds_nothing_wrong(tmp_path):
    repository = write_soak_repository(tmp_path / "repository")
    with embedded_server(repository, log_path=tmp_path / "server.log") as server:
        entry = Entry(server.address.http_url, server.address.grpc_url, server.address.metrics_url)
        outcome = asyncio.run(soak(entry, Plan(8.0, 24, 40, 1), processes_of(server.pid)))
    assert outcome.problems == []
    assert outcome.requests > 50
    assert min(outcome.ways.values()) > 0
    assert outcome.drafted > outcome.accepted > 0
    assert outcome.memory_end_bytes > 0


def test_the_slope_is_that_of_the_later_half():
    samples = [(float(at), 0 if at < 50 else 1000 + 10 * at) for at in range(100)]
    assert slope_per_minute(samples) == pytest.approx(600.0)
