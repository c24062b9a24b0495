"""Asks a running server a handful of questions whose answers show that it serves, losslessly and robustly."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftyard.doors.endpoint import Endpoint, fetch_metrics
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.losslessness import Losslessness
from draftyard.nouns.policy import Policy
from draftyard.nouns.prompt import Message, Prompt
from draftyard.nouns.report import Check
from draftyard.nouns.timeline import EntryCall, EntryRequest, InputTensor, Timeline, TokenEvent
from draftyard.rules.smoke_checks import (
    GAUGE,
    RELEASE_LIMIT_S,
    check_cancel,
    check_drafting,
    check_generation,
    check_lossless,
    check_models_ready,
    check_refused,
    check_same,
    check_stop_word,
    check_utf8,
    losslessness,
    pick_stop_word,
    skipped,
)

ENTRY = "tensorrt_llm_bls"
ENSEMBLE = "ensemble"
REQUEST_TIMEOUT_S = 60.0
ANSWER_TOKENS = 24
LOSSLESS_TOKENS = 48
PACK_PROMPTS = 3
CANCEL_TOKENS = 400

QUESTION = "Name three things that float on water, and say why."
# Without a chat template a model ends at once after a question; a sentence that is not over goes on.
OPENING = "Once upon a time there was a small boat that"
COPY_PROMPTS = (
    "Repeat this list exactly, line by line:\nred apple\ngreen apple\nred apple\ngreen apple\nred apple\ngreen apple",
    "Copy this code without changes:\nfor item in items:\n    print(item)\nfor item in items:\n    print(item)\n",
)
OTHER_SCRIPTS = "Repeat exactly: Grüße 🎉 日本語 Привет 🚀 café — naïve"


@dataclass(frozen=True, slots=True)
class ServedVariant:
    """One repository to verify. Limits are those of its engine; `max_draft_len` 0 for plain decoding.

    `max_draft_len` counts the nodes of a tree, `draft_depth` the tokens that a step can accept; None where they are the
    same.

    `policy` is the one that the repository carries; `target` and `precision` name what is served in a golden file.
    """

    name: str
    speculator: SpeculatorKind
    repository_key: str
    repository: Path
    max_input_len: int
    max_seq_len: int
    max_draft_len: int
    max_batch_size: int = 256
    policy: Policy | None = None
    target: str = ""
    precision: str = ""
    draft_depth: int | None = None

    @property
    def longest_run(self) -> int:
        """Positions at which acceptance is counted: the depth of a tree, the length of a chain."""
        return self.max_draft_len if self.draft_depth is None else self.draft_depth

    @property
    def speculating(self) -> int | None:
        """`num_draft_tokens` of a request that shall speculate at any load; None where that is the server's default."""
        return None if self.policy is None else self.max_draft_len


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """The checks in the order they were made, and the comparison of the two arms."""

    checks: tuple[Check, ...]
    losslessness: Losslessness


async def smoke(endpoint: Endpoint, metrics_url: str, variant: ServedVariant, prompts: Sequence[Prompt]) -> SmokeResult:
    """Make every check; a check that fails does not stop the next. Failure only when the server does not answer."""
    states = await endpoint.ready_models()
    checks = [check_models_ready(states, ENTRY)]
    if not states.get(ENTRY, False):
        return SmokeResult(tuple(checks), Losslessness(compared=0, identical=0, divergences=()))
    checks += await _timed(lambda: _generations(endpoint, ENSEMBLE in states))
    found, lossless = await _arms(endpoint, variant, prompts)
    checks += found
    checks += await _timed(lambda: _scripts_and_stop_words(endpoint))
    checks += await _timed(lambda: _cancel(endpoint, metrics_url, variant))
    checks += await _timed(lambda: _bad_inputs(endpoint, variant))
    return SmokeResult(tuple(checks), lossless)


async def _timed(make: Callable[[], Awaitable[list[Check]]]) -> list[Check]:
    """Checks that share their requests share the time as well."""
    started = time.perf_counter()
    checks = await make()
    each_s = (time.perf_counter() - started) / max(1, len(checks))
    return [check.model_copy(update={"seconds": round(each_s, 3)}) for check in checks]


def chat(text: str, max_tokens: int) -> EntryRequest:
    """One user message as a request."""
    prompt = Prompt("", "", "test", "", (Message("user", text),))
    return EntryRequest(prompt.chat_json(), max_tokens, chat=True)


async def _ask(endpoint: Endpoint, request: EntryRequest) -> Timeline:
    return await endpoint.generate(request.call(), timeout_s=REQUEST_TIMEOUT_S)


async def _generations(endpoint: Endpoint, has_ensemble: bool) -> list[Check]:
    request = chat(QUESTION, ANSWER_TOKENS)
    streamed = await _ask(endpoint, request)
    whole = await _ask(endpoint, replace(request, stream=False))
    checks = [
        check_generation("the entry answers, streamed", streamed),
        check_generation("the entry answers, in one piece", whole),
        check_same("streamed and whole answers are the same", streamed, whole),
    ]
    if not has_ensemble:
        return [*checks, skipped("the ensemble answers", "a whole answer", "the repository has no ensemble")]
    plain = EntryRequest(OPENING, ANSWER_TOKENS, stream=False, exclude_input=True)
    by_entry = await _ask(endpoint, plain)
    by_ensemble = await _ask(endpoint, replace(plain, model=ENSEMBLE))
    return [
        *checks,
        check_generation("the ensemble answers", by_ensemble),
        check_same("ensemble and entry give the same answer", by_entry, by_ensemble),
    ]


def lossless_requests(prompts: Sequence[Prompt]) -> list[tuple[str, EntryRequest]]:
    """Prompts that speculation finds easy (copies) and some of the pack's, one a domain."""
    listed = [(f"copy-{index}", chat(text, LOSSLESS_TOKENS)) for index, text in enumerate(COPY_PROMPTS, 1)]
    domains: dict[str, Prompt] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, prompt)
    for prompt in list(domains.values())[:PACK_PROMPTS]:
        listed.append((prompt.id, EntryRequest(prompt.chat_json(), LOSSLESS_TOKENS, chat=True)))
    return listed


async def _arms(
    endpoint: Endpoint, variant: ServedVariant, prompts: Sequence[Prompt]
) -> tuple[list[Check], Losslessness]:
    """Ask every prompt with and without speculation; a variant that does not speculate has nothing to compare."""
    if variant.speculator is SpeculatorKind.NONE:
        nothing = Losslessness(compared=0, identical=0, divergences=())
        return [
            skipped("speculation changes no token", "the same tokens", "this repository does not speculate")
        ], nothing
    started = time.perf_counter()
    requests = lossless_requests(prompts)
    baseline = [await _ask(endpoint, replace(request, num_draft_tokens=0)) for _, request in requests]
    asked = [replace(request, num_draft_tokens=variant.speculating) for _, request in requests]
    speculative = [await _ask(endpoint, request) for request in asked]
    names = [name for name, _ in requests]
    found = losslessness("smoke", list(zip(names, baseline, speculative, strict=True)))
    checks = [check_lossless(found, len(requests)), *check_drafting(speculative, baseline)]
    each_s = (time.perf_counter() - started) / len(checks)
    return [check.model_copy(update={"seconds": round(each_s, 3)}) for check in checks], found


async def _scripts_and_stop_words(endpoint: Endpoint) -> list[Check]:
    request = chat(OTHER_SCRIPTS, LOSSLESS_TOKENS)
    checks = [check_utf8(await _ask(endpoint, request), await _ask(endpoint, replace(request, stream=False)))]
    request = chat(QUESTION, ANSWER_TOKENS)
    free = await _ask(endpoint, request)
    word = pick_stop_word(free.text)
    if word is None:
        return [*checks, skipped("a stop word never leaks", "the text before it", "the answer has no word to stop at")]
    return [*checks, check_stop_word(word, free, await _ask(endpoint, replace(request, stop_words=(word,))))]


async def _cancel(endpoint: Endpoint, metrics_url: str, variant: ServedVariant) -> list[Check]:
    asked = max(2, min(CANCEL_TOKENS, variant.max_seq_len // 2))
    request = replace(chat(QUESTION, asked), min_tokens=asked, num_draft_tokens=0)
    seen: list[TokenEvent] = []

    def watch(event: TokenEvent) -> bool:
        seen.append(event)
        return len(seen) < 4

    timeline = await endpoint.generate(request.call(), watch, REQUEST_TIMEOUT_S)
    closed = time.perf_counter()
    released_s: float | None = None
    known = False
    while time.perf_counter() - closed < 2 * RELEASE_LIMIT_S:
        metrics = await asyncio.to_thread(fetch_metrics, metrics_url)
        known = GAUGE in metrics
        if not known or metrics[GAUGE] == 0:
            released_s = time.perf_counter() - closed
            break
        await asyncio.sleep(0.05)
    return [check_cancel(timeline, asked, released_s, known)]


def bad_calls(variant: ServedVariant) -> list[tuple[str, EntryCall]]:
    """Requests that make no sense, each wrong in one place."""
    good = EntryRequest("Hello", 4).call()
    others = tuple(tensor for tensor in good.tensors if tensor.name != "max_tokens")
    long_text = "word " * (variant.max_input_len + 64)
    return [
        ("a missing tensor", replace(good, tensors=others)),
        ("a tensor of the wrong type", replace(good, tensors=(*others, InputTensor("max_tokens", "FP32", (4.0,))))),
        ("a prompt that is too long", EntryRequest(long_text, 4).call()),
        ("max_tokens 0", EntryRequest("Hello", 0).call()),
        ("a negative max_tokens", EntryRequest("Hello", -3).call()),
        ("an empty prompt", EntryRequest("", 4).call()),
        ("an unknown tensor", replace(good, tensors=(*good.tensors, InputTensor("max_tokenz", "INT32", (4,))))),
        ("an unknown parameter", replace(good, parameters=(("chatt", True),))),
        ("messages that are not JSON", replace(good, parameters=(("chat", True),))),
    ]


async def _bad_inputs(endpoint: Endpoint, variant: ServedVariant) -> list[Check]:
    checks = []
    for name, call in bad_calls(variant):
        checks.append(check_refused(name, await endpoint.generate(call, timeout_s=REQUEST_TIMEOUT_S)))
    after = await _ask(endpoint, chat(QUESTION, 4))
    return [*checks, check_generation("the server lives on after bad requests", after)]
