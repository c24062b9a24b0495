"""The two repositories: the guests of this project, and the pair in their place; the same scripted engine in both."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from draftyard.doors.repository_files import write_model_config
from draftyard.doors.shipped_files import copy_guest
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.repository import LogitsType, RepositoryPlan
from draftyard.rules.triton_repository import draw_repository

PEER = Path(__file__).parent / "peer"
ENGINE = Path(__file__).resolve().parents[2] / "tests" / "fakes" / "triton_engine" / "1"
PEERS = {"preprocessing": "preprocessing", "postprocessing": "postprocessing", "tensorrt_llm_bls": "entry"}


def repository_plan(tokenizer: Tokenizer, end_id: int) -> RepositoryPlan:
    """Room for everything that the benchmark asks."""
    return RepositoryPlan(
        lane=Lane.REFERENCE,
        speculator=SpeculatorKind.NGRAM,
        max_draft_len=4,
        max_batch_size=64,
        max_input_len=4096,
        max_seq_len=8192,
        kv_cache_tokens=65536,
        max_queue_size=512,
        default_timeout_s=300.0,
        end_ids=(end_id,),
        vocab_size=tokenizer.get_vocab_size(),
        logits_type=LogitsType.FLOAT32,
        guests_digest="0" * 64,
    )


def write_repository(root: Path, tokenizer_directory: Path, reply: str, decoding: str) -> Path:
    """A repository whose engine answers with `reply`, a token a step, as fast as it can.

    `decoding` is "" for our guests, else that of the peer's entry.
    """
    shutil.copytree(tokenizer_directory, root / "tokenizer")
    tokenizer = Tokenizer.from_file(str(tokenizer_directory / "tokenizer.json"))
    changes = {
        "tensorrt_llm": {"script": json.dumps({"reply": reply, "draft_len": 0})},
        "tensorrt_llm_bls": {"decoding": decoding} if decoding else {},
    }
    for config in draw_repository(repository_plan(tokenizer, end_id=0)).models:
        version = root / "models" / config.name / "1"
        if config.backend == "python" and decoding:
            version.mkdir(parents=True)
            shutil.copyfile(PEER / f"{PEERS[config.name]}.py", version / "model.py")
        elif config.backend == "python":
            copy_guest(config.name, version)
        parameters = {**dict(config.parameters), **changes.get(config.name, {})}
        write_model_config(root / "models", replace(config, parameters=tuple(sorted(parameters.items()))))
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ENGINE, root / "backends" / "tensorrtllm", ignore=ignore)
    return root
