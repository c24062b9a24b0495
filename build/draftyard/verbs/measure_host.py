"""Measures what the reference engine does on this machine: small random models, a few steps each."""

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from draftyard.doors.host_rates_probe import measure_copy, measure_matrix
from draftyard.doors.measuring_host import now_utc, read_environment
from draftyard.doors.tensors import TensorWriter, open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.nouns.generation import GenerationRequest
from draftyard.nouns.host_speed import HostSpeed
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.recipe import Limits
from draftyard.nouns.tensor import TensorSpec, TensorType
from draftyard.rules.predict.host_rates import Probe, rates_of
from draftyard.rules.trtllm import checkpoint_config, expected_tensors, reference_engine_config

_PROMPT = 128
_SHORT_PROMPT = 8
_STEPS = 6
_ROUNDS = 2
_BATCH = 8
_PRECISIONS = (Precision.FP16, Precision.FP32)
# Large enough that its weights do not fit a cache, small enough to be made in a second.
_LARGE = Network(
    family="llama",
    architecture="LlamaForCausalLM",
    hidden_size=576,
    intermediate_size=1536,
    layers=10,
    heads=9,
    kv_heads=3,
    head_size=64,
    vocab_size=8192,
    max_position_embeddings=1024,
    norm_epsilon=1e-5,
    rotary_base=10000.0,
    hidden_act="silu",
    tied_head=False,
)
# Its arithmetic is nothing beside the time around it.
_SMALL = replace(_LARGE, hidden_size=32, intermediate_size=32, heads=2, kv_heads=1, head_size=16, vocab_size=64)


@dataclass(frozen=True, slots=True)
class _Times:
    """Milliseconds of a decode step of one sequence and of a full batch, and of a prompt."""

    one: float
    batch: float
    prompt: float


def measure_host() -> HostSpeed:
    """Rates of this machine; takes some seconds, and as long as the machine is busy, they are those of a busy one."""
    environment = read_environment()
    reference = {}
    for precision in _PRECISIONS:
        large = _times(_LARGE, precision)
        small, shallow = _times(_SMALL, precision), _times(replace(_SMALL, layers=2), precision)
        reference[precision.value] = rates_of(
            Probe(
                network=_LARGE,
                precision=precision,
                one_ms=large.one,
                batch_ms=large.batch,
                prompt_ms=large.prompt,
                batch=_BATCH,
                prompt=_PROMPT,
                small_ms=small.one,
                small_batch_ms=small.batch,
                small_layers=_SMALL.layers,
                shallow_ms=shallow.one,
                shallow_layers=2,
            )
        )
    return HostSpeed(
        measured_at=now_utc(),
        processor=environment.processor,
        processors=environment.processor_count,
        load_average_1min=environment.load_average_1min,
        copy_bytes_per_s=measure_copy(),
        matrix_flops=measure_matrix(),
        reference=reference,
    )


def _times(network: Network, precision: Precision) -> _Times:
    with tempfile.TemporaryDirectory(prefix="draftyard-measure-") as folder:
        directory = Path(folder)
        _write_engine(directory, network, precision)
        prompt, one = _run(directory, 1, _PROMPT)
        _, batch = _run(directory, _BATCH, _SHORT_PROMPT)
    return _Times(one, batch, prompt)


def _run(directory: Path, sequences: int, length: int) -> tuple[float, float]:
    """Milliseconds of the prompts' step and of a decode step, the best of a few after a warm-up.

    The best, because other work on the machine only ever adds time; what it adds in service a calibration will say.
    """
    engine = load_engine(directory, open_tensor_file)
    prompts: list[float] = []
    decodes: list[float] = []
    # The first round warms kernels and memory up.
    for round_, tokens in enumerate((1, *(_STEPS,) * _ROUNDS)):
        for index in range(sequences):
            ids = tuple((index * 31 + round_ * 7 + position) % 61 for position in range(length))
            engine.submit(GenerationRequest(f"{round_}-{index}", ids, tokens))
        spans = []
        while engine.has_work:
            start = time.perf_counter()
            engine.step()
            spans.append(1e3 * (time.perf_counter() - start))
        if tokens > 1:
            prompts.append(spans[0])
            decodes += spans[1:]
    return min(prompts), min(decodes)


def _write_engine(directory: Path, network: Network, precision: Precision) -> None:
    checkpoint = checkpoint_config(network, precision, 1, 1)
    limits = Limits(
        max_batch_size=_BATCH, max_input_len=_PROMPT, max_seq_len=2 * _PROMPT, max_num_tokens=_BATCH * _PROMPT
    )
    config = reference_engine_config(
        checkpoint=checkpoint,
        limits=limits,
        speculator=None,
        kv_cache_tokens=_BATCH * 2 * _PROMPT,
        tensorrt_llm_version="measure",
    )
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = expected_tensors(checkpoint, 0)
    specs = [TensorSpec(name, kind, shape) for name, (kind, shape) in tensors.items()]
    with TensorWriter(directory / "rank0.safetensors", specs, {}) as writer:
        for spec in specs:
            writer.write(spec.name, next(_noise(spec)))


def _noise(spec: TensorSpec) -> Iterator[bytes]:
    """Small numbers without a pattern; zeros would make every product the same."""
    values = np.random.default_rng(0).standard_normal(spec.shape, dtype=np.float32) * 0.02
    yield values.astype(np.float16 if spec.type is TensorType.F16 else np.float32).tobytes()
