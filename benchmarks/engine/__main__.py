"""Prints and writes decode speed at several batch sizes, its ratio to transformers, and what n-gram drafts gain.

Run from the repository with `PYTHONPATH=build python -m benchmarks.engine MODEL_DIRECTORY [--output FILE]`. The arms of
a comparison take turns within each round and the medians of the rounds are compared, because a shared machine drifts.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from benchmarks.engine.demo_engines import COPY_PROMPTS, build_engines
from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.generation import GenerationRequest, SpeculationStatistics

PROMPT_TOKENS = 64
BATCHES = ((1, 48), (4, 32), (16, 16))  # sequences at once, tokens of each
TEXT = "The museum opened in 1911 near the old harbour and was rebuilt twice. Its first rooms showed maps and tools. "


@dataclass(frozen=True)
class Options:
    """What a run may vary: threads of torch, the same for every arm, and rounds measured."""

    threads: int
    rounds: int


def decode(
    engine: ReferenceEngine, prompts: Sequence[Sequence[int]], tokens: int, draft_len: int | None = None
) -> tuple[float, dict[str, list[int]], list[SpeculationStatistics]]:
    """Tokens per second after every prompt has been read, the output of each prompt, and the final statistics."""
    for place, prompt in enumerate(prompts):
        engine.submit(GenerationRequest(str(place), tuple(prompt), tokens, max_draft_len=draft_len))
    outputs: dict[str, list[int]] = {str(place): [] for place in range(len(prompts))}
    final: list[SpeculationStatistics] = []
    started, counted = 0.0, 0
    while engine.has_work:
        for event in engine.step():
            if event.error:
                raise RuntimeError(event.error)
            outputs[event.request_id].extend(event.token_ids)
            if started:
                counted += len(event.token_ids)
            if event.finish_reason is not None and event.statistics is not None:
                final.append(event.statistics)
        if not started and all(outputs.values()):
            started = time.perf_counter()
    return counted / (time.perf_counter() - started), outputs, final


def decode_speed(
    engine: ReferenceEngine, prompts: Sequence[Sequence[int]], tokens: int, draft_len: int | None = None
) -> float:
    """Tokens per second alone."""
    return decode(engine, prompts, tokens, draft_len)[0]


def transformers_speed(model: LlamaForCausalLM, prompts: Sequence[Sequence[int]], tokens: int) -> float:
    """Tokens per second of `generate` with a static cache; the time of one token is taken off, for the prompt."""
    ids = torch.tensor([list(prompt) for prompt in prompts])
    fixed = {"attention_mask": torch.ones_like(ids), "do_sample": False, "cache_implementation": "static"}
    seconds = {}
    for count in (1, tokens):
        started = time.perf_counter()
        model.generate(ids, min_new_tokens=count, max_new_tokens=count, pad_token_id=2, disable_compile=True, **fixed)
        seconds[count] = time.perf_counter() - started
    return len(prompts) * (tokens - 1) / (seconds[tokens] - seconds[1])


def medians(arms: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median over the rounds of each arm; the arms take turns, one unmeasured round first."""
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for round_number in range(rounds + 1):
        for name, arm in arms.items():
            speed = arm()
            if round_number:
                speeds[name].append(speed)
    return {name: round(statistics.median(values), 1) for name, values in speeds.items()}


def batch_rows(
    directory: Path, model_directory: Path, prompt: Sequence[int], options: Options
) -> list[dict[str, object]]:
    """One row per batch size: the engine in fp16 and fp32, and transformers in fp32 and bf16."""
    engines = {
        kind: load_engine(directory / kind / "none", open_tensor_file, threads=options.threads)
        for kind in ("fp16", "fp32")
    }
    models = {
        kind: AutoModelForCausalLM.from_pretrained(model_directory, dtype=dtype).eval()
        for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
    }
    rows = []
    for batch, tokens in BATCHES:
        prompts = [[*prompt[shift:], *prompt[:shift]] for shift in range(batch)]
        arms: dict[str, Callable[[], float]] = {}
        for kind, engine in engines.items():
            arms[f"engine {kind}"] = partial(decode_speed, engine, prompts, tokens)
        for kind, model in models.items():
            arms[f"transformers {kind}"] = partial(transformers_speed, model, prompts, tokens)
        speeds = medians(arms, options.rounds)
        best = max(speeds["transformers fp32"], speeds["transformers bf16"])
        rows.append(
            {
                "batch": batch,
                "tokens_per_s": speeds,
                "ratio_fp16_to_transformers_fp32": round(speeds["engine fp16"] / speeds["transformers fp32"], 2),
                "ratio_fp16_to_faster_transformers": round(speeds["engine fp16"] / best, 2),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def speculation_rows(directory: Path, prompts: Sequence[Sequence[int]], options: Options) -> list[dict[str, object]]:
    """n-gram drafts on prompts that repeat themselves: speed with and without, acceptance length, equal outputs."""
    engine = load_engine(directory / "fp16" / "ngram", open_tensor_file, threads=options.threads)
    rows = []
    # Each passage alone, then all at once: the model goes on copying some and not others, and both must show.
    for chosen in [*([prompt] for prompt in prompts), list(prompts)]:
        speeds = medians(
            {
                "plain": partial(decode_speed, engine, chosen, 96, 0),
                "ngram": partial(decode_speed, engine, chosen, 96),
            },
            options.rounds,
        )
        _, plain, _ = decode(engine, chosen, 96, 0)
        _, speculative, final = decode(engine, chosen, 96)
        steps, accepted = sum(one.steps for one in final), sum(one.accepted for one in final)
        rows.append(
            {
                "batch": len(chosen),
                "tokens_per_s": speeds,
                "gain": round(speeds["ngram"] / speeds["plain"], 2),
                "acceptance_length": round(1 + accepted / steps, 2),
                "identical_outputs": sum(plain[name] == speculative[name] for name in plain),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> int:
    """Measure, print a row at a time, and write one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("model", type=Path, help="directory of a Llama in Hugging Face layout")
    parser.add_argument("--output", type=Path, default=Path("engine-benchmark.json"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="torch threads of every arm")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each comparison")
    arguments = parser.parse_args()
    options = Options(arguments.threads, arguments.rounds)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    long = tokenizer(TEXT * 8)["input_ids"][:PROMPT_TOKENS]
    copies = [tokenizer(text)["input_ids"] for text in COPY_PROMPTS]
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as scratch:
        directory = build_engines(arguments.model, Path(scratch))
        document = {
            "machine": {"processor": platform.processor(), "cores": os.cpu_count(), "torch": torch.__version__},
            "options": {"threads": options.threads, "rounds": options.rounds},
            "load_average_before": load_before,
            "batches": batch_rows(directory, arguments.model, long, options),
            "speculation": speculation_rows(directory, copies, options),
            "load_average_after": os.getloadavg(),
        }
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {arguments.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
