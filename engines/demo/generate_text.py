"""Lets the target write the draft's training text: answers to the training prompts and to prompts of its own making."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, DynamicCache, LlamaForCausalLM, PreTrainedTokenizerBase

TOP_K = 12
HERE = Path(__file__).parent
OWN_PROMPT_TOKENS = 72


@dataclass(frozen=True, slots=True)
class Job:
    """One text to write: the tokens it goes on from, how many to add, and at which temperature (0: greedy)."""

    prompt_id: str
    tokens: tuple[int, ...]
    max_tokens: int
    temperature: float


@dataclass(slots=True)
class Answer:
    """What was written for one job so far: tokens, and per token the target's top-k (ids, log-probabilities)."""

    tokens: list[int] = field(default_factory=list)
    top_ids: list[NDArray[np.int32]] = field(default_factory=list)
    top_logprobs: list[NDArray[np.float16]] = field(default_factory=list)


class Writer:
    """The target, its tokenizer and the generator of its random choices."""

    def __init__(self, target: Path, dtype: torch.dtype) -> None:
        """Load the model directory `target`."""
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(target)
        self.model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(target, dtype=dtype)
        (self.stop,) = self.tokens("<|im_end|>")
        self.generator = torch.Generator()

    @torch.inference_mode()
    def write(self, jobs: list[Job]) -> list[Answer]:
        """Write all texts of one batch; a row that ends leaves the batch, so the rest gets faster."""
        width = max(len(job.tokens) for job in jobs)
        tokens = torch.full((len(jobs), width), self.stop)
        mask = torch.zeros((len(jobs), width), dtype=torch.long)
        for row, job in enumerate(jobs):
            tokens[row, width - len(job.tokens) :] = torch.tensor(job.tokens)
            mask[row, width - len(job.tokens) :] = 1
        answers = [Answer() for _ in jobs]
        alive = list(range(len(jobs)))
        cache = DynamicCache()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        while alive:
            logits = self.model(
                input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
            ).logits[:, -1]
            chosen = self._record(logits.float().log_softmax(-1), [jobs[i] for i in alive], [answers[i] for i in alive])
            keep = [
                row
                for row, index in enumerate(alive)
                if int(chosen[row]) != self.stop and len(answers[index].tokens) < jobs[index].max_tokens
            ]
            rows = torch.tensor(keep, dtype=torch.long)
            if keep and len(keep) < len(alive):
                cache.batch_select_indices(rows)
            alive = [alive[row] for row in keep]
            tokens = chosen[rows].unsqueeze(1)
            positions = positions[rows][:, -1:] + 1
            mask = torch.cat([mask[rows], torch.ones((len(keep), 1), dtype=torch.long)], dim=1)
        return answers

    def _record(self, logprobs: torch.Tensor, jobs: list[Job], answers: list[Answer]) -> torch.Tensor:
        """Choose each row's next token [rows] from `logprobs` [rows, vocabulary] and note it with its top-k."""
        chosen = logprobs.argmax(-1)
        warm = [row for row, job in enumerate(jobs) if job.temperature > 0]
        if warm:
            heat = torch.tensor([jobs[row].temperature for row in warm]).unsqueeze(1)
            weights = (logprobs[warm] / heat).softmax(-1)
            chosen[warm] = torch.multinomial(weights, 1, generator=self.generator).squeeze(1)
        top = logprobs.topk(TOP_K)
        ids, values = top.indices.to(torch.int32).numpy(), top.values.to(torch.float16).numpy()
        for row, answer in enumerate(answers):
            answer.tokens.append(int(chosen[row]))
            answer.top_ids.append(ids[row])
            answer.top_logprobs.append(values[row])
        return chosen

    def chat_tokens(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """The conversation in the target's chat template, ready for its answer."""
        return self.tokens(
            str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        )

    def tokens(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that is in the chat template already."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def pack_jobs(self, temperature: float, max_tokens: int) -> list[Job]:
        """One job for each training prompt of the pack; any other split is refused."""
        jobs = []
        for line in (HERE / "prompts/train.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["split"] != "train":
                raise SystemExit(f"{record['id']} is no training prompt: a draft must not see what it is measured on")
            tokens = self.chat_tokens(record["messages"])
            jobs.append(Job(record["id"], tokens, min(record["max_tokens"], max_tokens), temperature))
        return jobs

    def own_jobs(self, name: str, count: int, max_tokens: int) -> list[Job]:
        """Jobs whose prompts the target makes up: it goes on after `<|im_start|>user`; unfinished ones are dropped."""
        chat = self.tokenizer.apply_chat_template([{"role": "user", "content": "@"}], tokenize=False)
        start = self.tokens(str(chat).split("@")[0])
        turn = self.tokens("\n<|im_start|>assistant\n")
        asked = self.write([Job(f"{name}-{i:02d}", start, OWN_PROMPT_TOKENS, 1.0) for i in range(count)])
        return [
            Job(f"{name}-{i:02d}", (*start, *answer.tokens, *turn), max_tokens, 0.8 if i % 2 else 0.0)
            for i, answer in enumerate(asked)
            if answer.tokens[-1] == self.stop and len(answer.tokens) > 3
        ]


def batches(jobs: list[Job], size: int, seed: int) -> Iterator[list[Job]]:
    """Batches of jobs of about equal length, in a shuffled order so that any number of them is a fair sample."""
    ordered = sorted(jobs, key=lambda job: (len(job.tokens) > 100, job.max_tokens, len(job.tokens)))
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    for index in np.random.default_rng(seed).permutation(len(groups)):
        yield groups[int(index)]


def write_shard(path: Path, jobs: list[Job], answers: list[Answer], seconds: float) -> None:
    """One file per batch, renamed into place, so that a killed run leaves whole shards only."""
    beside = path.with_suffix(".partial")
    with beside.open("wb") as file:
        np.savez(
            file,
            prompt_ids=np.array([job.prompt_id for job in jobs]),
            temperatures=np.array([job.temperature for job in jobs], dtype=np.float32),
            prompt_lengths=np.array([len(job.tokens) for job in jobs]),
            prompt_tokens=np.array([token for job in jobs for token in job.tokens], dtype=np.uint16),
            answer_lengths=np.array([len(answer.tokens) for answer in answers]),
            answer_tokens=np.array([token for answer in answers for token in answer.tokens], dtype=np.uint16),
            top_ids=np.concatenate([np.stack(answer.top_ids) for answer in answers]).astype(np.uint16),
            top_logprobs=np.concatenate([np.stack(answer.top_logprobs) for answer in answers]),
            seconds=np.array(seconds),
        )
    beside.rename(path)


def plan(writer: Writer, asked: argparse.Namespace) -> Iterator[tuple[str, list[Job]]]:
    """(shard name, jobs): first all training prompts greedily, then own prompts and sampled answers in turn."""
    for index, jobs in enumerate(batches(writer.pack_jobs(0.0, asked.max_tokens), asked.batch, asked.seed)):
        yield f"greedy-{index:03d}", jobs
    sampled = list(batches(writer.pack_jobs(0.8, asked.max_tokens), asked.batch, asked.seed + 1))
    for index in range(asked.rounds * len(sampled)):
        yield f"sampled-{index:03d}", sampled[index % len(sampled)]
        yield f"own-{index:03d}", []


def run(asked: argparse.Namespace) -> None:
    """Write shards until the plan is done or the time is over; shards that exist are kept."""
    torch.set_num_threads(asked.threads)
    asked.out.mkdir(parents=True, exist_ok=True)
    writer = Writer(asked.target, getattr(torch, asked.dtype))
    deadline = time.monotonic() + asked.minutes * 60
    total = 0
    for number, (name, planned) in enumerate(plan(writer, asked)):
        path = asked.out / f"{name}.npz"
        if path.exists():
            continue
        if time.monotonic() > deadline:
            break
        start = time.monotonic()
        writer.generator.manual_seed(asked.seed * 100_003 + number)
        jobs = planned or writer.own_jobs(name, asked.batch, asked.max_tokens)
        answers = writer.write(jobs)
        seconds = time.monotonic() - start
        write_shard(path, jobs, answers, seconds)
        written = sum(len(answer.tokens) for answer in answers)
        total += written
        print(f"{name}: {written} tokens, {written / seconds:.0f} tokens/s, {total} in all", flush=True)


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--out", type=Path, default=HERE.parent / "out/demo-training")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3, help="how often sampled answers are written")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
