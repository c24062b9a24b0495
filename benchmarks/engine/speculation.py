"""What each speculator gains over plain decoding of the same engine: by domain alone, and by load."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.engine.arms import Options, Reading, take_turns
from benchmarks.engine.own import decode, decode_speed
from benchmarks.engine.transformers_peer import transformers_speed
from draftyard.engine.reference import ReferenceEngine

DOMAINS = ("edit", "rag_quote", "python")
TOKENS = 64
LOADS = (1, 2, 4, 8, 16)


def copying_prompts(model: Path, prompts: Path, most_tokens: int, each: int) -> dict[str, list[list[int]]]:
    """Some prompts of each copy-heavy domain, as token ids, `each` of a domain and none longer than `most_tokens`."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    found: dict[str, list[list[int]]] = {domain: [] for domain in DOMAINS}
    for line in prompts.read_text().splitlines():
        prompt = json.loads(line)
        if len(found.get(prompt["domain"], [None] * each)) < each:
            ids = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True)["input_ids"]
            if len(ids) <= most_tokens:
                found[prompt["domain"]].append(ids)
    return found


def gain_rows(
    engines: Mapping[str, ReferenceEngine], prompts: Mapping[str, list[list[int]]], options: Options
) -> list[dict[str, object]]:
    """One sequence at a time, a row a speculator and domain."""
    rows = []
    for kind, engine in engines.items():
        for domain, chosen in prompts.items():
            speeds = take_turns(
                {
                    "plain": partial(_one_by_one, engine, chosen, 0),
                    kind: partial(_one_by_one, engine, chosen, None),
                },
                options.rounds,
            )
            plain, speculative = ([decode(engine, [one], TOKENS, wish) for one in chosen] for wish in (0, None))
            lengths = [one.acceptance_length for one in speculative]
            rows.append(
                {
                    "speculator": kind,
                    "domain": domain,
                    "plain": speeds["plain"].as_json(),
                    "speculative": speeds[kind].as_json(),
                    "gain": round(speeds[kind].best_by_cpu / speeds["plain"].best_by_cpu, 2),
                    "acceptance_length": round(sum(lengths) / len(lengths), 2),
                    "identical": all(
                        one.outputs == other.outputs for one, other in zip(plain, speculative, strict=True)
                    ),
                }
            )
    return rows


def _one_by_one(engine: ReferenceEngine, prompts: Sequence[Sequence[int]], draft_len: int | None) -> Reading:
    found = [decode_speed(engine, [prompt], TOKENS, draft_len) for prompt in prompts]
    return Reading(sum(one.tokens for one in found), sum(one.wall_s for one in found), sum(one.cpu_s for one in found))


def load_rows(
    engines: Mapping[str, ReferenceEngine], prompts: Sequence[Sequence[int]], options: Options
) -> list[dict[str, object]]:
    """So many sequences at once: gain falls with the load, and where it crosses 1 speculation has to end."""
    rows = []
    for kind, engine in engines.items():
        for load in LOADS:
            chosen = [prompts[place % len(prompts)] for place in range(load)]
            speeds = take_turns(
                {
                    "plain": partial(decode_speed, engine, chosen, TOKENS // 2, 0),
                    kind: partial(decode_speed, engine, chosen, TOKENS // 2),
                },
                options.rounds,
            )
            rows.append(
                {
                    "speculator": kind,
                    "running": load,
                    "plain": speeds["plain"].as_json(),
                    "speculative": speeds[kind].as_json(),
                    "gain": round(speeds[kind].best_by_cpu / speeds["plain"].best_by_cpu, 2),
                }
            )
    return rows


def peer_rows(
    engines: Mapping[str, ReferenceEngine],
    models: tuple[Path, Path],
    prompts: Mapping[str, list[list[int]]],
    options: Options,
) -> list[dict[str, object]]:
    """One prompt of each domain: our speculators beside transformers' prompt lookup and assisted generation."""
    target, draft = (
        AutoModelForCausalLM.from_pretrained(place, dtype="float32").eval() if place.is_dir() else None
        for place in models
    )
    rows = []
    for domain, chosen in prompts.items():
        one = chosen[:1]
        arms: dict[str, Callable[[], Reading]] = {
            f"ours {kind}": partial(decode_speed, engine, one, TOKENS) for kind, engine in engines.items()
        }
        arms["transformers plain fp32"] = partial(transformers_speed, target, one, TOKENS, {})
        arms["transformers prompt lookup fp32"] = partial(
            transformers_speed, target, one, TOKENS, {"prompt_lookup_num_tokens": 6}
        )
        if draft is not None:
            arms["transformers assisted fp32"] = partial(
                transformers_speed, target, one, TOKENS, {"assistant_model": draft}
            )
        for name, speeds in take_turns(arms, options.rounds).items():
            rows.append({"domain": domain, "arm": name, "tokens_per_s": speeds.as_json()})
    return rows
