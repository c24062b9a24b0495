"""A mixture of experts from the converter to the engine: float16, cut in two, drafting, the same text as without."""

import json
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_engines import random_prompts, run, tokens_of
from tests.verbs.test_convert import converted
from tests.verbs.test_family_agreement import executed, largest_difference, made, random_model

from draftyard.doors.config_files import read_config, write_config
from draftyard.doors.tensors import link_tensor_file, open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.generation import GenerationRequest
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.recipe import Limits, NgramSpeculator
from draftyard.rules.trtllm import reference_engine_config

LIMITS = Limits(max_batch_size=4, max_input_len=64, max_seq_len=200, max_num_tokens=64)
NGRAM = NgramSpeculator(kind=SpeculatorKind.NGRAM, max_draft_len=3)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixtral")
    made(root / "m", random_model("mixtral", {}))
    return converted(root / "m", root / "c", Precision.FP16, 2)


def engine_of(directory: Path, checkpoint: Path, speculator: NgramSpeculator | None) -> ReferenceEngine:
    directory.mkdir()
    config = reference_engine_config(
        checkpoint=read_config(checkpoint / "config.json"),
        limits=LIMITS,
        speculator=speculator,
        kv_cache_tokens=4 * 204,
        tensorrt_llm_version="1.2.1",
    )
    write_config(directory / "config.json", config)
    for rank in range(2):
        link_tensor_file(checkpoint / f"rank{rank}.safetensors", directory / f"rank{rank}.safetensors")
    return load_engine(directory, open_tensor_file, threads=1)


def test_the_router_keeps_32_bit(checkpoint: Path) -> None:
    headers = open_tensor_file(checkpoint / "rank0.safetensors").headers
    kinds = {name: header.type.value for name, header in headers.items() if ".layers.0.mlp." in name}
    assert kinds == {
        "transformer.layers.0.mlp.router.weight": "F32",
        "transformer.layers.0.mlp.fc.weight": "F16",
        "transformer.layers.0.mlp.proj.weight": "F16",
    }
    assert json.loads((checkpoint / "config.json").read_text())["moe"]["num_experts"] == 4


def test_float16_weights_of_experts(tmp_path: Path, checkpoint: Path) -> None:
    """Rounded as the checkpoint rounds them, transformers gives the same logits: all but the router is rounded."""
    model = random_model("mixtral", {})
    for name, value in model.named_parameters():
        if not name.endswith("mlp.gate.weight"):
            value.data = value.data.half().float()
    assert largest_difference(executed(checkpoint), made(tmp_path / "m", model).logits) <= 1e-4


def test_drafts_change_nothing(tmp_path: Path, checkpoint: Path) -> None:
    prompts = random_prompts(6, vocabulary=50, seed=3, lengths=(3, 20))
    texts = []
    for name, speculator in (("plain", None), ("ngram", NGRAM)):
        requests = [GenerationRequest(str(index), tuple(prompt), 100) for index, prompt in enumerate(prompts)]
        engine = engine_of(tmp_path / name, checkpoint, speculator)
        with torch.inference_mode():
            events = run(engine, requests)
        texts.append([tokens_of(events[str(index)]) for index in range(len(prompts))])
    assert texts[0] == texts[1]
    final = [events[str(index)][-1].statistics for index in range(len(prompts))]
    assert sum(one.accepted for one in final if one) > 0, "a draft must have been accepted"
