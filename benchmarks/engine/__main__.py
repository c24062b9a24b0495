"""Prints and writes how fast the reference engine decodes, beside its peers and beside itself with speculators.

Run from the repository with `PYTHONPATH=build python -m benchmarks.engine MODEL_DIRECTORY [--output FILE]`. Every arm
has the same number of threads. The arms of a comparison take turns within each round, and ratios are those of the best
rounds, by processor time: with one thread that is what a free machine's clock would show. Peers beyond transformers
take part where `requirements/bench.txt` is installed.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.engine.arms import Options, Reading, Speeds, table, take_turns
from benchmarks.engine.demo_engines import build_engines
from benchmarks.engine.half_gguf import write_half_gguf
from benchmarks.engine.machine import machine_limits
from benchmarks.engine.optional_peers import absent, llama_cpp, openvino
from benchmarks.engine.own import decode_speed, recipe_engines, widened
from benchmarks.engine.speculation import LOADS, copying_prompts, gain_rows, load_rows, peer_rows
from benchmarks.engine.transformers_peer import STATIC, transformers_speed
from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine

PROMPT_TOKENS = 128
BATCHES = ((1, 48), (4, 32), (16, 16))  # sequences at once, tokens of each
TEXT = "The museum opened in 1911 near the old harbour and was rebuilt twice. Its first rooms showed maps and tools. "
PROMPTS = Path("engines/demo/prompts/test.jsonl")
OWN = "ours fp16"


def batch_rows(
    directory: Path, model_directory: Path, scratch: Path, options: Options, batches: Sequence[tuple[int, int]]
) -> list[dict[str, object]]:
    """One row a batch size: tokens per second of every arm, plain decoding after prompts have been read."""
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    prompt = tokenizer(TEXT * 16)["input_ids"][:PROMPT_TOKENS]
    missing = absent()
    half = None if len(missing) == 2 else write_half_gguf(model_directory, scratch / "half.gguf")
    engines = {
        kind: load_engine(directory / kind / "none", open_tensor_file, threads=options.threads)
        for kind in ("fp16", "fp32")
    }
    models = {
        kind: AutoModelForCausalLM.from_pretrained(model_directory, dtype=dtype).eval()
        for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
    }
    vino = None if half is None or "openvino_genai" in missing else openvino(half, options.threads)
    rows: list[dict[str, object]] = []
    for batch, tokens in batches:
        prompts = [[*prompt[shift:], *prompt[:shift]] for shift in range(batch)]
        arms: dict[str, Callable[[], Reading]] = {}
        for kind, engine in engines.items():
            arms[f"ours {kind}"] = partial(decode_speed, engine, prompts, tokens)
        for kind, model in models.items():
            arms[f"transformers {kind}"] = partial(transformers_speed, model, prompts, tokens, STATIC)
        if half is not None and "xllamacpp" not in missing:
            arms["llama.cpp fp16"] = partial(llama_cpp(half, batch, options.threads), prompts, tokens)
        if vino is not None:
            arms["openvino fp16"] = partial(vino, prompts, tokens)
        rows.append(_compared(batch, take_turns(arms, options.rounds)))
        print(_batch_table(rows[-1], options, missing), flush=True)
    return rows


def _compared(batch: int, speeds: dict[str, Speeds]) -> dict[str, object]:
    ratios = {name: round(speeds[OWN].best_by_cpu / found.best_by_cpu, 2) for name, found in speeds.items()}
    return {
        "batch": batch,
        "tokens_per_s": {name: found.as_json() for name, found in speeds.items()},
        "ratio_of_ours_fp16": ratios,
    }


def _batch_table(row: dict[str, object], options: Options, missing: Sequence[str]) -> str:
    speeds, ratios = row["tokens_per_s"], row["ratio_of_ours_fp16"]
    cells = [
        [name, one["best_by_cpu"], one["best"], one["median"], f"{one['spread']:.0%}", one["n"], ratios[name]]
        for name, one in speeds.items()
    ]
    cells.extend([name, "absent", "", "", "", "", ""] for name in missing)
    title = f"plain decoding, batch {row['batch']}, {options.threads} thread(s), {PROMPT_TOKENS} prompt tokens"
    return table(title, ("arm", "tokens/cpu-s", "tokens/s", "median", "spread", "n", f"{OWN} / arm"), cells)


def with_shares(rows: Sequence[dict[str, object]], limits: dict[str, float | int | str], weights: int) -> None:
    """Add what share of the measured limits our float16 arm reached: bytes of weights a step, operations a token."""
    for row in rows:
        speed, batch = float(row["tokens_per_s"][OWN]["best_by_cpu"]), int(str(row["batch"]))
        read = 2 * weights * speed / batch / 1e9 / float(limits["read_gb_per_s"])
        computed = 2 * weights * speed / 1e9 / float(limits["float16_stored_gflops"])
        row["share_of_read_bandwidth"], row["share_of_product_speed"] = round(read, 2), round(computed, 2)


def speculation(model: Path, draft: Path, directory: Path, scratch: Path, options: Options) -> dict[str, object]:
    """Gains of every speculator that the demo's recipe has an engine for, at least n-gram lookup."""
    found = {"ngram": directory / "fp16" / "ngram", **recipe_engines(Path("engines/out"), "demo")}
    engines = {
        kind: widened(place, scratch / kind, max(LOADS), options.threads)
        for kind, place in found.items()
        if kind != "none"
    }
    prompts = copying_prompts(model, PROMPTS, 400, 2)
    gains = gain_rows(engines, prompts, options)
    columns = ("speculator", "domain", "gain", "acceptance_length", "identical")
    print(table("gain of speculation, one sequence", columns, [[row[name] for name in columns] for row in gains]))
    loads = load_rows(engines, [one for chosen in prompts.values() for one in chosen], options)
    columns = ("speculator", "running", "gain")
    print(table("gain of speculation by load", columns, [[row[name] for name in columns] for row in loads]))
    peers = peer_rows(engines, (model, draft), prompts, options)
    cells = [[row["domain"], row["arm"], *row["tokens_per_s"].values()] for row in peers]
    print(
        table(
            "speculation beside peers, one sequence",
            ("domain", "arm", "tokens/cpu-s", "tokens/s", "median", "spread", "n"),
            cells,
        )
    )
    return {"gains": gains, "loads": loads, "peers": peers}


def main() -> int:
    """Measure, print a table at a time, and write one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("model", type=Path, help="directory of a Llama in Hugging Face layout")
    parser.add_argument("--draft", type=Path, default=Path("engines/out/models/smollm2-draft"))
    parser.add_argument("--output", type=Path, default=Path("engine-benchmark.json"))
    parser.add_argument("--threads", type=int, default=1, help="threads of every arm")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each comparison")
    parser.add_argument("--batches", default="1,4,16", help="of the batch sizes 1, 4 and 16, those to measure")
    parser.add_argument("--part", choices=("all", "batches", "speculation"), default="all")
    arguments = parser.parse_args()
    options = Options(arguments.threads, arguments.rounds)
    limits = machine_limits(options.threads)
    document: dict[str, object] = {
        "machine": {"processors": os.cpu_count(), **limits},
        "options": {"threads": options.threads, "rounds": options.rounds},
        "absent": absent(),
        "load_average_before": os.getloadavg(),
    }
    with tempfile.TemporaryDirectory() as scratch:
        directory = build_engines(arguments.model, Path(scratch))
        if arguments.part != "speculation":
            wanted = arguments.batches.split(",")
            batches = [one for one in BATCHES if str(one[0]) in wanted]
            rows = batch_rows(directory, arguments.model, Path(scratch), options, batches)
            weights = sum(file.stat().st_size for file in (directory / "fp16" / "none").glob("rank*.safetensors")) // 2
            with_shares(rows, limits, weights)
            document["batches"] = rows
        if arguments.part != "batches":
            document["speculation"] = speculation(
                arguments.model, arguments.draft, directory, Path(scratch) / "wide", options
            )
    document["load_average_after"] = os.getloadavg()
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {arguments.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
