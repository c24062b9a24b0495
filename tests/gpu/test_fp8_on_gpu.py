"""An FP8 engine on a CUDA device computes what it computes on the CPU, but for narrower sums."""

from pathlib import Path

from tests.engine.test_scaled_linear import SIZES, engine_logits, engine_of, random_model
from tests.engine.tiny_engines import loaded
from transformers import LlamaConfig, LlamaForCausalLM

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine


def test_fp8_logits_are_near_those_of_the_cpu(tmp_path: Path, device: str) -> None:
    directory = engine_of(tmp_path, random_model(LlamaForCausalLM, LlamaConfig(**SIZES)))
    expected = engine_logits(loaded(directory))
    found = engine_logits(load_engine(directory, open_tensor_file, device=device, threads=1)).cpu()
    assert (found - expected).norm() / expected.norm() < 0.1
