"""Prints what pre- and post-processing cost in processor time on the real server, ours beside a transformers pair.

Run from the repository with `PYTHONPATH=build python -m benchmarks.guests TOKENIZER_DIRECTORY [--output FILE]`. The
engine is a script that answers at once, so the rest is the guests' and the server's. Processor times of the models'
own processes are compared: they depend little on what else the machine does.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.guests.measuring import Caller, spent
from benchmarks.guests.repositories import write_repository
from draftyard.doors.triton import embedded_server

TEXT = (
    "The museum opened in 1911 near the old harbour and was rebuilt twice. Its first rooms showed maps and tools, "
    "żółw, 你好, 🙂 and naïve café. "
)
GOAL = 1 / 3
COMPARED = ("preprocessing_us_per_request", "postprocessing_us_per_request", "guests_us_per_streamed_token")
GUESTS = ("preprocessing", "postprocessing", "tensorrt_llm_bls")


ARMS = {"ours": "", "transformers": "model", "transformers_inline": "inline", "server_alone": "none"}


def measure(directory: Path, tokenizer: Path, decoding: str, rounds: int) -> dict[str, float]:
    """All figures of one arm, in microseconds of processor time unless the name says otherwise."""
    prompt, reply = TEXT * 4, TEXT * 8
    ids = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode(reply, add_special_tokens=False).ids
    repository = write_repository(directory, tokenizer, reply, decoding)
    log_path, backends = directory / "server.log", directory / "backends"
    with embedded_server(repository, log_path=log_path, backends=backends) as server:
        caller = Caller(server.address.grpc_url)
        caller.preprocess([prompt] * 20)
        caller.postprocess(ids, 20)
        caller.stream(prompt, len(ids), 4, 4)
        requests, streams = 40 * rounds, 2 * rounds
        before = spent(server.pid, GUESTS, lambda: caller.preprocess([prompt] * requests))
        after = spent(server.pid, GUESTS, lambda: caller.postprocess(ids, requests))
        shown: list[str] = []
        streamed = spent(
            server.pid, GUESTS, lambda: shown.append(caller.stream(prompt, len(ids), min(8, streams), streams))
        )
        caller.close()
    if shown[0] != reply and decoding != "none":
        raise RuntimeError(f"the streamed text is wrong: {shown[0][:80]!r}")
    tokens = streams * len(ids)
    guests_s = streamed.processor_s["tensorrt_llm_bls"] + streamed.processor_s["postprocessing"]
    return {
        "preprocessing_us_per_request": before.processor_s["preprocessing"] / requests * 1e6,
        "postprocessing_us_per_request": after.processor_s["postprocessing"] / requests * 1e6,
        "guests_us_per_request": (guests_s + streamed.processor_s["preprocessing"]) / streams * 1e6,
        "guests_us_per_streamed_token": guests_s / tokens * 1e6,
        "server_us_per_streamed_token": streamed.processor_s["server"] / tokens * 1e6,
        "streamed_tokens_per_s": tokens / streamed.wall_s,
        "prompt_characters": float(len(prompt)),
        "answer_tokens": float(len(ids)),
    }


def main(argv: list[str]) -> int:
    """Measure both and print; 0 when the goal is met."""
    words = argparse.ArgumentParser(prog="benchmarks.guests", description=__doc__)
    words.add_argument("tokenizer", type=Path, help="directory with tokenizer.json")
    words.add_argument("--rounds", type=int, default=20)
    words.add_argument("--output", type=Path)
    arguments = words.parse_args(argv)
    found = {}
    with tempfile.TemporaryDirectory(prefix="draftyard-guests-") as scratch:
        for name, decoding in ARMS.items():
            found[name] = measure(Path(scratch) / name, arguments.tokenizer, decoding, arguments.rounds)
    ratios = {key: found["ours"][key] / value if value else 0.0 for key, value in found["transformers"].items()}
    print(f"{'':32}" + "".join(f"{name:>21}" for name in (*ARMS, "ours/transformers")))
    for key, ratio in ratios.items():
        print(f"{key:32}" + "".join(f"{found[name][key]:21.1f}" for name in ARMS) + f"{ratio:21.2f}")
    if arguments.output:
        text = json.dumps({**found, "ratio": ratios, "goal": GOAL}, indent=2)
        arguments.output.write_text(text + "\n", encoding="utf-8")
    return 0 if all(ratios[key] <= GOAL for key in COMPARED) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
