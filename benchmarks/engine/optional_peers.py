"""llama.cpp and OpenVINO GenAI as arms, where `requirements/bench.txt` is installed; both read a float16 GGUF file."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

from benchmarks.engine.arms import Moment, Reading

CONTEXT = 1024
Measure = Callable[[Sequence[Sequence[int]], int], Reading]


def absent() -> list[str]:
    """Names of the packages that are not installed."""
    return [name for name in ("xllamacpp", "openvino_genai") if importlib.util.find_spec(name) is None]


def llama_cpp(path: Path, batch: int, threads: int) -> Measure:
    """llama.cpp's server in this process, a slot a sequence. Prompts lie in its cache when the clock starts."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.n_parallel, settings.n_ctx, settings.warmup = batch, batch * CONTEXT, False
    server = xllamacpp.Server(settings)

    def ask(slot: int, prompt: Sequence[int], tokens: int) -> int:
        wish = {"prompt": list(prompt), "n_predict": tokens, "ignore_eos": True, "temperature": 0.0, "top_k": 1}
        answer = server.handle_completions({**wish, "cache_prompt": True, "id_slot": slot})
        answer = answer if isinstance(answer, dict) else json.loads(answer)
        return int(answer["usage"]["completion_tokens"])

    def measure(prompts: Sequence[Sequence[int]], tokens: int) -> Reading:
        with ThreadPoolExecutor(len(prompts)) as pool:
            list(pool.map(ask, range(len(prompts)), prompts, [1] * len(prompts)))
            started = Moment.now()
            counted = sum(pool.map(ask, range(len(prompts)), prompts, [tokens] * len(prompts)))
            return Reading.between(started, Moment.now(), counted)

    return measure


def openvino(path: Path, threads: int) -> Measure:
    """OpenVINO GenAI with float32 activations; the time of one token is taken off, for the prompt."""
    import openvino as ov
    import openvino_genai

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    pipeline = openvino_genai.LLMPipeline(str(path), "CPU", **settings)

    def measure(prompts: Sequence[Sequence[int]], tokens: int) -> Reading:
        ids = numpy.array([list(prompt) for prompt in prompts], dtype=numpy.int64)
        inputs = openvino_genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(numpy.ones_like(ids)))
        moments = [Moment.now()]
        for count in (1, tokens):
            wish = openvino_genai.GenerationConfig(max_new_tokens=count, do_sample=False, ignore_eos=True)
            pipeline.generate(inputs, wish)
            moments.append(Moment.now())
        one, all_of_them = (
            Reading.between(moments[place], moments[place + 1], len(prompts) * count)
            for place, count in enumerate((1, tokens))
        )
        return Reading(all_of_them.tokens - one.tokens, all_of_them.wall_s - one.wall_s, all_of_them.cpu_s - one.cpu_s)

    return measure
