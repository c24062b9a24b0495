"""Engines that speculate with EAGLE, EAGLE-3 and MTP: the plain text, the trees of the papers, and what is accepted."""

import random
from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_drafters import (
    TinyDrafter,
    dynamic_tree,
    features_of,
    static_tree,
    train,
    write_drafter_engine,
)
from tests.engine.tiny_engines import Sizes, loaded, random_llama, random_prompts, run, tokens_of, write_engine
from transformers import LlamaForCausalLM

from draftyard.engine.acceptance import Draft
from draftyard.engine.reference import ReferenceEngine
from draftyard.engine.sequence import Sequence
from draftyard.nouns.generation import FinishReason, GenerationEvent, GenerationRequest, SamplingParameters

CHOICES = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
STATIC = {"max_draft_len": len(CHOICES), "depth": 3, "choices": CHOICES}
DYNAMIC = {"max_draft_len": 8, "depth": 3, "dynamic_top_k": 3, "max_non_leaves_per_layer": 2}
CHAIN = {"max_draft_len": 4, "depth": 4}
SPECULATORS = {
    "eagle static": ("eagle", STATIC),
    "eagle dynamic": ("eagle", DYNAMIC),
    "eagle3 chain": ("eagle3", CHAIN),
    "eagle3 dynamic": ("eagle3", DYNAMIC),
    "mtp chain": ("mtp", CHAIN),
}
# Little room in a pass: prompts come in pieces and drafts are cut.
TIGHT = Sizes(max_num_tokens=48)


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return random_llama(num_hidden_layers=4)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, target: LlamaForCausalLM) -> Path:
    return write_engine(tmp_path_factory.mktemp("plain") / "engine", target, sizes=TIGHT)


def drafter_for(kind: str, target: LlamaForCausalLM, **fields: object) -> TinyDrafter:
    return TinyDrafter(kind, target, **({"own_head": True} if kind == "eagle3" else {}), **fields)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory, target: LlamaForCausalLM) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("engines")
    return {
        name: write_drafter_engine(root / name, drafter_for(kind, target), block, sizes=TIGHT)
        for name, (kind, block) in SPECULATORS.items()
    }


def ask(name: str, prompt: Many[int], max_tokens: int = 20, **fields: object) -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt), max_tokens, **fields)


def summary(events: Many[GenerationEvent]) -> tuple[list[int], FinishReason | None]:
    return tokens_of(events), events[-1].finish_reason


@pytest.mark.parametrize("name", SPECULATORS)
def test_greedy_text_is_the_plain_text_whoever_comes_and_goes(
    directories: dict[str, Path], plain: Path, name: str
) -> None:
    """Twelve requests on eight slots, ends within them, two rounds in different order and with cancellations."""
    prompts = [prompt * 2 for prompt in random_prompts(12, lengths=(4, 40))]
    requests = [
        ask(str(place), prompt, 10 + 3 * place, end_ids=(5, 77), max_draft_len=(None, 2, None, 0)[place % 4])
        for place, prompt in enumerate(prompts)
    ]
    wanted = {name: summary(events) for name, events in run(loaded(plain), requests).items()}
    assert {reason for _, reason in wanted.values()} == {FinishReason.LENGTH, FinishReason.END_ID}
    engine, drafted = loaded(directories[name]), 0
    for seed in range(2):
        order = random.Random(seed).sample(requests, len(requests))
        for request in order[:4]:
            engine.submit(replace(request, request_id=f"cancelled {request.request_id}", max_tokens=90, end_ids=()))
        for _ in range(5 + 4 * seed):
            engine.step()
        for request in order[:4]:
            engine.cancel(f"cancelled {request.request_id}")
        engine.step()
        for request, events in run(engine, order).items():
            assert summary(events) == wanted[request]
            drafted += events[-1].statistics.drafted
        assert engine._proposer._memories == {}
    assert drafted > 300


class Checked:
    """Compares each draft with the one that the plain network gives, everything computed anew, node by node."""

    def __init__(self, engine: ReferenceEngine, drafter: TinyDrafter, block: dict[str, object]) -> None:
        self.inner, self.drafter, self.block = engine._proposer, drafter, block
        self.taps = engine._proposer.taps
        self.drafts = 0
        self.absorb, self.settle, self.forget = self.inner.absorb, self.inner.settle, self.inner.forget

    def propose(self, sequences: Many[Sequence], most: Many[int]) -> list[Draft]:
        drafts = self.inner.propose(sequences, most)
        for sequence, nodes, draft in zip(sequences, most, drafts, strict=True):
            wanted = self.wanted(sequence, nodes)
            assert sorted(self.paths(draft)) == sorted(wanted)
            self.drafts += 1
        return drafts

    def wanted(self, sequence: Sequence, nodes: int) -> list[tuple[int, ...]]:
        text = list(sequence.tokens)
        features = features_of(self.drafter, text)
        depth = min(int(str(self.block["depth"])), sequence.depth_room)
        if "dynamic_top_k" in self.block:
            tree = dynamic_tree(self.drafter, text, features, 3, 2, depth)
        else:
            choices = self.block.get("choices", [(0,) * length for length in range(1, 5)])
            tree = static_tree(self.drafter, text, features, [path for path in choices if len(path) <= depth])
        return [path for path, _ in sorted(tree.items(), key=lambda item: -item[1])[:nodes]]

    @staticmethod
    def paths(draft: Draft) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        parents = draft.parents if draft.parents is not None else range(-1, len(draft.token_ids) - 1)
        for token, parent in zip(draft.token_ids, parents, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), token))
        return found


@pytest.mark.parametrize("name", SPECULATORS)
def test_drafts_are_those_of_the_papers_in_every_step(tmp_path: Path, target: LlamaForCausalLM, name: str) -> None:
    """Which feature goes with which token, at which position, behind what: nothing of it may slip in any step."""
    kind, block = SPECULATORS[name]
    drafter = drafter_for(kind, target, rows=random.Random(1).sample(range(96), 40))
    engine = loaded(write_drafter_engine(tmp_path / "engine", drafter, block, sizes=TIGHT))
    checked = engine._proposer = Checked(engine, drafter, block)
    prompts = [*random_prompts(3, lengths=(3, 9)), *random_prompts(1, lengths=(70, 70))]
    with torch.inference_mode():
        events = run(engine, [ask(str(place), prompt, 9 + place) for place, prompt in enumerate(prompts)])
    assert checked.drafts > 20
    assert all(one[-1].statistics.drafted > 0 for one in events.values())


def walking_target(**changes: object) -> LlamaForCausalLM:
    """Its next token depends on the current one alone; embeddings are long, so that logits without a norm are sure."""
    target = random_llama(num_hidden_layers=4, **changes)
    target.model.embed_tokens.weight.data = torch.randn(96, 64, generator=torch.Generator().manual_seed(2)) * 10
    for layer in target.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    return target


def knowing(kind: str, target: LlamaForCausalLM, **fields: object) -> TinyDrafter:
    """Hands the embedding of the newest token on: all that such a target looks at."""
    drafter = TinyDrafter(kind, target, **fields)
    for name, value in drafter.named.items():
        if name.endswith(("dense.weight", "mlp.proj.weight", "fc.bias")):
            value.data.zero_()
        elif name in ("fc.weight", "eh_proj.weight"):
            value.data = torch.eye(len(value), value.shape[1])
        elif name in ("enorm.weight", "ln_f.weight"):
            value.data.fill_(1.0)
    return drafter


@pytest.mark.parametrize("name", ["eagle static", "eagle dynamic", "mtp chain"])
@pytest.mark.parametrize("reduced", [False, True])
def test_a_drafter_that_knows_the_target_is_accepted_to_its_depth(tmp_path: Path, name: str, reduced: bool) -> None:
    """With a reduced head, its rows in no order and d2t to match: a slip in the mapping would be accepted nowhere."""
    kind, block = SPECULATORS[name]
    target = walking_target()
    plain = write_engine(tmp_path / "plain", target)
    prompts = random_prompts(6)
    requests = [ask(str(place), prompt, 1 + int(str(block["depth"])) * 6 + 6) for place, prompt in enumerate(prompts)]
    wanted = run(loaded(plain), requests)
    seen = {token for events in wanted.values() for token in tokens_of(events)}
    assert 10 < len(seen) < 90
    rows = random.Random(3).sample(sorted(seen), len(seen)) if reduced else None
    drafter = knowing(kind, target, rows=rows)
    events = run(loaded(write_drafter_engine(tmp_path / "engine", drafter, block)), requests)
    for request in requests:
        statistics = events[request.request_id][-1].statistics
        assert tokens_of(events[request.request_id]) == tokens_of(wanted[request.request_id])
        assert statistics.acceptance_length == pytest.approx(1 + int(str(block["depth"])))


@pytest.mark.parametrize("name", ["eagle static", "eagle dynamic", "mtp chain"])
def test_an_end_within_an_accepted_path_cuts_there(tmp_path: Path, name: str) -> None:
    kind, block = SPECULATORS[name]
    target = walking_target()
    engine = loaded(write_drafter_engine(tmp_path / "engine", knowing(kind, target), block))
    prompt = random_prompts(1)[0]
    text = tokens_of(run(engine, [ask("a", prompt, 14)])["a"])
    for stop in range(1, 9):
        events = run(engine, [ask("a", prompt, 14, stop_sequences=(tuple(text[: stop + 1]),)), ask("b", prompt, 14)])
        assert summary(events["a"]) == (text[: stop + 1], FinishReason.STOP_WORDS)
        assert tokens_of(events["b"]) == text
    assert engine._proposer._memories == {}


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_a_trained_drafter_is_accepted_far_more_than_a_random_one(tmp_path: Path, kind: str) -> None:
    """A few steps on the target's own texts, whose tokens depend on all before them."""
    target = random_llama(num_hidden_layers=4, vocab_size=24)
    prompts = [[token] for token in range(12)]
    asked = [ask(str(place), prompt, 40) for place, prompt in enumerate(prompts)]
    plain = run(loaded(write_engine(tmp_path / "plain", target)), asked)
    texts = [[*prompt, *tokens_of(plain[str(place)])] for place, prompt in enumerate(prompts)]
    drafter = TinyDrafter(kind, target, own_head=kind == "eagle3")
    rates = []
    for name in ("random", "trained"):
        directory = write_drafter_engine(tmp_path / name, drafter, CHAIN if kind != "eagle" else DYNAMIC)
        requests = [ask(str(place), text[:10], 30) for place, text in enumerate(texts)]
        events = run(loaded(directory), requests)
        for request, text in zip(requests, texts, strict=True):
            assert tokens_of(events[request.request_id]) == text[10:40]
        steps = sum(one[-1].statistics.steps for one in events.values())
        rates.append(29 * len(texts) / steps)
        if name == "random":
            train(drafter, texts, steps=100)
    assert rates[0] < 1.4
    assert rates[1] > rates[0] + 0.6


@pytest.mark.parametrize("name", ["eagle dynamic", "eagle static", "mtp chain"])
def test_sampled_text_is_distributed_as_plain_text(
    tmp_path: Path, directories: dict[str, Path], plain: Path, name: str
) -> None:
    """Second and third token over many seeds: total variation between the two engines."""
    prompt, sampling = random_prompts(1, lengths=(6, 6))[0], SamplingParameters(temperature=1.5, top_k=3)
    counts = {}
    for offset, directory in enumerate((plain, directories[name])):
        seeds = range(10_000 * offset, 10_000 * offset + 400)
        events = run(loaded(directory), [ask(str(s), prompt, 4, sampling=replace(sampling, seed=s)) for s in seeds])
        counts[offset] = torch.zeros(96, 96)
        for one in events.values():
            counts[offset][tuple(tokens_of(one)[1:3])] += 1 / len(events)
    assert (counts[0].sum(0) > 0).sum() > 5
    for axis in (0, 1):
        assert (counts[0].sum(axis) - counts[1].sum(axis)).abs().sum() / 2 < 0.15


@pytest.mark.parametrize("reduced", [False, True])
def test_a_chain_drawn_from_the_targets_own_distribution_stands_whole(tmp_path: Path, reduced: bool) -> None:
    """The module knows the target, so q is p: nothing drawn may be refused, though the likeliest token often would be.

    With a reduced head that holds all tokens in another order, q must be carried to the right tokens.
    """
    target = walking_target()
    target.lm_head.weight.data *= 0.1
    rows = random.Random(4).sample(range(96), 96) if reduced else None
    drafter = knowing("mtp", target, rows=rows)
    engine = loaded(write_drafter_engine(tmp_path / "engine", drafter, CHAIN))
    sampling = SamplingParameters(temperature=1.3, top_k=6, top_p=0.95, frequency_penalty=0.5)
    requests = [
        ask(str(place), prompt, 41, sampling=replace(sampling, seed=place))
        for place, prompt in enumerate(random_prompts(8))
    ]
    together = run(engine, requests)
    for request in requests:
        statistics = together[request.request_id][-1].statistics
        assert statistics.accepted == statistics.drafted == 32
        assert len(set(tokens_of(together[request.request_id]))) > 15, "no chain of likeliest tokens"
        assert tokens_of(run(engine, [request])[request.request_id]) == tokens_of(together[request.request_id])


def test_a_drafter_without_numbers_ends_its_requests_with_an_error(tmp_path: Path, target: LlamaForCausalLM) -> None:
    drafter = TinyDrafter("mtp", target)
    drafter.named["ln_f.weight"].data.fill_(float("nan"))
    events = run(loaded(write_drafter_engine(tmp_path / "engine", drafter, CHAIN)), [ask("a", [1, 2, 3])])["a"]
    assert events[-1].finish_reason is FinishReason.ERROR
    assert "drafter" in str(events[-1].error)


def test_features_out_of_order_are_refused(directories: dict[str, Path]) -> None:
    engine = loaded(directories["eagle static"])
    engine.submit(ask("a", [1, 2, 3]))
    engine.step()
    (sequence,) = engine._running.values()
    with pytest.raises(ValueError, match="position 7 came where those of 3 follow"):
        engine._proposer.absorb(sequence, 7, torch.zeros(1, 64))


@pytest.mark.parametrize("name", SPECULATORS)
def test_sequences_may_fill_their_slots_to_the_last_position(
    tmp_path: Path, target: LlamaForCausalLM, name: str
) -> None:
    """The drafter's rows lie behind the sequence's own: the longest sequence must still find room for them."""
    kind, block = SPECULATORS[name]
    sizes = Sizes(max_batch_size=2, max_input_len=20, max_seq_len=40, kv_cache_tokens=200)
    plain = loaded(write_engine(tmp_path / "plain", target, sizes=sizes))
    engine = loaded(write_drafter_engine(tmp_path / "engine", drafter_for(kind, target), block, sizes=sizes))
    requests = [ask(str(place), prompt, 20) for place, prompt in enumerate(random_prompts(4, lengths=(20, 20)))]
    wanted = run(plain, requests)
    for name, events in run(engine, requests).items():
        assert summary(events) == summary(wanted[name])


@pytest.mark.parametrize("name", SPECULATORS)
def test_all_sequences_share_one_pass_a_level_over_the_drafters_own_vocabulary(
    tmp_path: Path, target: LlamaForCausalLM, name: str
) -> None:
    kind, block = SPECULATORS[name]
    rows = random.Random(2).sample(range(96), 40)
    directory = write_drafter_engine(tmp_path / "engine", drafter_for(kind, target, rows=rows), block)
    engine = loaded(directory)
    network, passes, widths = engine._proposer._network, [], []
    forward, logits = network.forward, network.logits
    network.forward = lambda *given: passes.append(len(given[0])) or forward(*given)
    network.logits = lambda states: widths.append(logits(states).shape[1]) or logits(states)
    for place, prompt in enumerate(random_prompts(3)):
        engine.submit(ask(str(place), prompt, 30))
    engine.step()
    assert passes == [], "short prompts wait for the first drafting"
    depth = int(str(block["depth"]))
    for _ in range(3):
        passes.clear()
        widths.clear()
        engine.step()
        assert passes == [3] * depth, "one for the true features, then one a level"
        assert widths == [40] * depth
