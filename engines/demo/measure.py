"""Measures on the test prompts, domain by domain, what each speculator of the demo yields in the reference engine."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from engines.demo.grow_tree import engine_directory
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.generation import GenerationRequest

HERE = Path(__file__).parent
PLAIN = "none"
ARMS = (PLAIN, "ngram", "draft_target", "medusa", "eagle")


@dataclass(frozen=True, slots=True)
class Answered:
    """One request: the tokens behind the prefill's own, their verification steps, and how long those took."""

    tokens: tuple[int, ...]
    steps: int
    wall_s: float
    cpu_s: float


@dataclass(slots=True)
class Sums:
    """What an arm did on the prompts of a domain."""

    tokens: int = 0
    steps: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    answers: int = 0
    differing: int = 0

    def add(self, one: Answered, plain: Answered) -> None:
        """Count an answer, and whether it is another than plain decoding gave."""
        self.tokens += len(one.tokens) - 1
        self.steps += one.steps
        self.wall_s += one.wall_s
        self.cpu_s += one.cpu_s
        self.answers += 1
        self.differing += one.tokens != plain.tokens

    def row(self, plain: Sums) -> dict[str, float]:
        """The figures; `speed_up` compares processor time, which other work on the machine disturbs less."""
        return {
            "answers": self.answers,
            "tokens": self.tokens,
            "acceptance_length": round(self.tokens / max(self.steps, 1), 3),
            "tokens_per_s": round(self.tokens / self.wall_s, 1),
            "tokens_per_cpu_s": round(self.tokens / self.cpu_s, 1),
            "speed_up": round(self.tokens / self.cpu_s / (plain.tokens / plain.cpu_s), 3),
            "differing": self.differing,
        }


def prompts(per_domain: int) -> Iterator[tuple[str, Mapping[str, object]]]:
    """(domain, record) of the first `per_domain` test prompts of each domain; another split is refused."""
    taken: dict[str, int] = {}
    for line in (HERE / "prompts/test.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["split"] != "test":
            raise SystemExit(f"{record['id']} is no test prompt")
        taken[record["domain"]] = taken.get(record["domain"], 0) + 1
        if taken[record["domain"]] <= per_domain:
            yield record["domain"], record


def ids_of(tokenizer: PreTrainedTokenizerBase, messages: object) -> tuple[int, ...]:
    """The conversation in the target's chat template, ready for its answer."""
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer.encode(str(text), add_special_tokens=False))


def answer(engine: ReferenceEngine, ids: tuple[int, ...], end: int, max_tokens: int) -> Answered:
    """One greedy answer; clocks run from the first token on, so that the prefill is left out."""
    engine.submit(GenerationRequest("0", ids, max_tokens, (end,)))
    tokens: list[int] = []
    steps, wall, cpu = -1, 0.0, 0.0
    while engine.has_work:
        for event in engine.step():
            if event.error:
                raise SystemExit(event.error)
            steps += 1
            tokens += event.token_ids
            if steps == 0:
                wall, cpu = time.perf_counter(), time.process_time()
    return Answered(tuple(tokens), steps, time.perf_counter() - wall, time.process_time() - cpu)


def measure(
    engines: Mapping[str, ReferenceEngine],
    tokenizer: PreTrainedTokenizerBase,
    chosen: Sequence[tuple[str, Mapping[str, object]]],
    max_tokens: int,
) -> dict[str, dict[str, dict[str, float]]]:
    """{domain: {arm: figures}} with `all`; the arms answer each prompt in turn, beginning with another each time."""
    sums: dict[str, dict[str, Sums]] = {}
    (end,) = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    names = list(engines)
    for index, (domain, record) in enumerate(chosen):
        ids, most = ids_of(tokenizer, record["messages"]), min(int(str(record["max_tokens"])), max_tokens)
        turn = names[index % len(names) :] + names[: index % len(names)]
        found = {name: answer(engines[name], ids, end, most) for name in turn}
        for place in (domain, "all"):
            arms = sums.setdefault(place, {name: Sums() for name in names})
            for name in names:
                arms[name].add(found[name], found[PLAIN])
    return {
        domain: {name: one.row(arms[PLAIN]) for name, one in arms.items()}
        for domain, arms in sorted(sums.items(), key=lambda item: item[0] == "all")
    }


def table(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """A Markdown table: acceptance length and, in brackets, speed-up over plain decoding."""
    names = [name for name in next(iter(figures.values())) if name != PLAIN]
    lines = ["| domain | tokens | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for domain, arms in figures.items():
        cells = [f"{arms[name]['acceptance_length']:.2f} ({arms[name]['speed_up']:.2f}x)" for name in names]
        lines.append(f"| {domain} | {arms[PLAIN]['tokens']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table; --out keeps all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--store", type=Path, default=HERE.parent / "out", help="folder of the built engines")
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--per-domain", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(asked.target)
    engines = {
        name: load_engine(engine_directory(asked.recipe, name, asked.store), open_tensor_file, threads=1)
        for name in asked.arms
    }
    figures = measure(engines, tokenizer, list(prompts(asked.per_domain)), asked.max_tokens)
    print(table(figures))
    document = {
        "what": f"greedy answers of the reference engine (one thread, float16 weights) to the first {asked.per_domain} "
        "test prompts of each domain, arms in turn; acceptance_length is tokens a verification step, the bonus token "
        "counted and the prefill's left out; speed_up compares tokens per processor second with plain decoding; "
        "differing counts answers other than the plain one",
        "max_tokens": asked.max_tokens,
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "domains": figures,
    }
    if asked.out:
        asked.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
