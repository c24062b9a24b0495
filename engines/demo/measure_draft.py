"""Measures, domain by domain, how many tokens a step of the target yields when the draft guesses four of them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from engines.demo.generate_text import Job, Writer
from transformers import LlamaForCausalLM

HERE = Path(__file__).parent
CHAIN = 4


def jobs_by_domain(writer: Writer, per_domain: int, max_tokens: int) -> dict[str, list[Job]]:
    """The first `per_domain` test prompts of each domain, to be answered greedily."""
    chosen: dict[str, list[Job]] = {}
    for line in (HERE / "prompts/test.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        jobs = chosen.setdefault(record["domain"], [])
        if len(jobs) < per_domain:
            ids = writer.chat_tokens(record["messages"])
            jobs.append(Job(record["id"], ids, min(record["max_tokens"], max_tokens), 0.0))
    return chosen


@torch.inference_mode()
def agreements(draft: LlamaForCausalLM, job: Job, tokens: list[int]) -> list[bool]:
    """For each answer token: does the draft, given the true text before it, find it most likely?"""
    ids = torch.tensor([[*job.tokens, *tokens[:-1]]])
    likely = draft(ids).logits[0, len(job.tokens) - 1 :].argmax(-1)
    return [int(guess) == token for guess, token in zip(likely, tokens, strict=True)]


def steps_needed(agrees: list[bool], chain: int) -> int:
    """Verification steps for an answer: the prefill gives the first token, a step the agreeing run (at most `chain`)
    and one more. Exact for greedy decoding: while guesses are accepted, the draft sees the target's own text.
    """
    at, steps = 1, 0
    while at < len(agrees):
        run = 0
        while run < chain and at + run < len(agrees) and agrees[at + run]:
            run += 1
        at += run + 1
        steps += 1
    return steps


def measure(target: Path, draft_directory: Path, per_domain: int, max_tokens: int) -> dict[str, dict[str, float]]:
    """Per domain and for all: answer tokens, share of tokens the draft finds, tokens per verification step."""
    writer = Writer(target, torch.float32)
    draft: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(draft_directory, dtype=torch.float32)
    table: dict[str, dict[str, float]] = {}
    all_steps = all_tokens = all_agreed = 0
    for domain, jobs in jobs_by_domain(writer, per_domain, max_tokens).items():
        rows = [agreements(draft, job, answer.tokens) for job, answer in zip(jobs, writer.write(jobs), strict=True)]
        tokens, agreed = sum(map(len, rows)), sum(map(sum, rows))
        steps = sum(steps_needed(row, CHAIN) for row in rows)
        table[domain] = figures(tokens, agreed, steps, len(rows))
        all_steps, all_tokens, all_agreed = all_steps + steps, all_tokens + tokens, all_agreed + agreed
        print(domain, table[domain], flush=True)
    table["all"] = figures(all_tokens, all_agreed, all_steps, per_domain * len(table))
    return table


def figures(tokens: int, agreed: int, steps: int, answers: int) -> dict[str, float]:
    """One row of the table."""
    return {
        "tokens": tokens,
        "agreement": round(agreed / tokens, 4),
        "tokens_per_step": round((tokens - answers) / steps, 3),
    }


def note(receipt: Path, table: dict[str, dict[str, float]], per_domain: int, max_tokens: int) -> None:
    """Put the table into the training receipt, under `test`."""
    document = json.loads(receipt.read_text(encoding="utf-8"))
    document["test"] = {
        "what": f"greedy chains of {CHAIN} on the first {per_domain} test prompts of a domain; tokens per step count "
        "the bonus token and leave out the token of the prefill",
        "against_held_out": "held-out prompts share templates and texts with training prompts and flatter the draft; "
        "test prompts share neither",
        "max_tokens": max_tokens,
        "domains": table,
    }
    receipt.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Print the table, and note it in the training receipt when --receipt is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--draft", type=Path, default=HERE.parent / "out/models/smollm2-draft")
    parser.add_argument("--per-domain", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--receipt", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    table = measure(asked.target, asked.draft, asked.per_domain, asked.max_tokens)
    print(json.dumps(table, indent=2))
    if asked.receipt:
        note(asked.receipt, table, asked.per_domain, asked.max_tokens)


if __name__ == "__main__":
    main()
