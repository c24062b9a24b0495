"""Drafters with a cache, several sequences at once, against the same networks computed anew without one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.tiny_drafters import TinyDrafter, features_of, write_drafter_engine
from tests.engine.tiny_engines import Sizes, loaded, random_llama, random_prompts, rounded, write_engine
from transformers import LlamaForCausalLM

from draftyard.engine.drafter_network import causal_window, tree_window
from draftyard.nouns.errors import Failure

CHAIN = {"max_draft_len": 3, "depth": 3}
STATIC = {"max_draft_len": 3, "depth": 2, "choices": [[0], [1], [0, 0]]}
SPECULATOR = {"eagle": STATIC, "eagle3": CHAIN, "mtp": CHAIN}
# Out of order on purpose: a reduced head is a list of tokens, not a slice.
SOME_ROWS = [17, 3, 94, 40, 41, 8, 63, 22, 5, 70]
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "eagle": ("eagle", {}),
    "eagle without bias": ("eagle", {"biased": False}),
    "eagle of two layers": ("eagle", {"layers": 2}),
    "eagle reduced": ("eagle", {"rows": SOME_ROWS}),
    "eagle with its own tables": ("eagle", {"own_head": True, "own_embedding": True}),
    "eagle3": ("eagle3", {"own_head": True}),
    "eagle3 reduced": ("eagle3", {"rows": SOME_ROWS}),
    "eagle3 narrower than its target": (
        "eagle3",
        {"hidden": 48, "own_embedding": True, "rows": SOME_ROWS, "taps": (0, 2, 4 - 1)},
    ),
    "mtp": ("mtp", {}),
    "mtp with its own tables": ("mtp", {"own_head": True, "own_embedding": True}),
}


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return random_llama(num_hidden_layers=4)


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference beside the largest value."""
    return float((found - wanted).abs().max() / wanted.abs().max())


def check_against_anew(directory: Path, drafter: TinyDrafter, tolerance: float) -> None:
    """Three sequences in chunks of different lengths, then two levels of a tree: states and logits."""
    network = loaded(directory)._proposer._network
    texts = random_prompts(3, lengths=(9, 14))
    features = [features_of(drafter, text) for text in texts]
    fed = [0, 0, 0]
    with torch.inference_mode():
        outputs: list[list[torch.Tensor]] = [[], [], []]
        for sizes in ((5, 1, 2), (1, 3, 4), (99, 99, 99)):
            windows, tokens, entering, spans = [], [], [], []
            for slot, (text, size) in enumerate(zip(texts, sizes, strict=True)):
                count = min(size, len(text) - 1 - fed[slot])
                windows.append(causal_window(slot, fed[slot], count))
                tokens.extend(text[fed[slot] + 1 : fed[slot] + 1 + count])
                entering.append(features[slot][fed[slot] : fed[slot] + count])
                spans.append(count)
                fed[slot] += count
            states = network.forward(windows, torch.tensor(tokens), network.enter(torch.cat(entering)))
            for slot, part in enumerate(states.split(spans)):
                outputs[slot].append(part)
        for slot, text in enumerate(texts):
            given = drafter.first_states(features[slot][:-1])
            expected = drafter.states(text[1:], given)
            assert apart(torch.cat(outputs[slot]), expected) <= tolerance
            rows = network.vocabulary.token_ids(torch.arange(network.vocabulary.size))
            logits = network.logits(torch.cat(outputs[slot]))
            assert apart(logits, drafter.logits(expected)[:, rows]) <= tolerance
        roots = torch.stack([part[-1][-1] for part in outputs])
        first = torch.tensor([[7, 9], [1, 2], [50, 51]])
        sees = torch.eye(2, dtype=torch.bool)
        level = network.forward(
            [tree_window(slot, fed[slot], 0, sees) for slot in range(3)],
            first.flatten(),
            roots.repeat_interleave(2, dim=0),
        ).view(3, 2, -1)
        # Children of the second node only; the first one's row lies between and must not be seen.
        sees = torch.tensor([[False, True, True, False], [False, True, False, True]])
        second = torch.tensor([[4, 5], [6, 6], [80, 81]])
        deeper = network.forward(
            [tree_window(slot, fed[slot], 1, sees) for slot in range(3)],
            second.flatten(),
            level[:, 1].repeat_interleave(2, dim=0),
        )
        rows = network.vocabulary.token_ids(torch.arange(network.vocabulary.size))
        logits = network.logits(deeper).view(3, 2, -1)
        for slot, text in enumerate(texts):
            for node in range(2):
                path = [int(first[slot, 1]), int(second[slot, node])]
                wanted = drafter.behind(text, features[slot], path)[rows]
                assert apart(logits[slot, node], wanted) <= tolerance


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cached_drafter_gives_what_one_without_a_cache_gives(
    tmp_path: Path, target: LlamaForCausalLM, variant: str
) -> None:
    kind, fields = VARIANTS[variant]
    drafter = TinyDrafter(kind, target, **fields)
    check_against_anew(write_drafter_engine(tmp_path / "engine", drafter, SPECULATOR[kind]), drafter, 1e-5)


@pytest.mark.parametrize("fields", [{}, {"rows": SOME_ROWS[:9]}, {"own_head": True}])
def test_an_eagle_net_is_joined_over_tensor_parallel_ranks(
    tmp_path: Path, target: LlamaForCausalLM, fields: dict[str, object]
) -> None:
    drafter = TinyDrafter("eagle", target, **fields)
    directory = write_drafter_engine(tmp_path / "engine", drafter, STATIC, tp_size=2)
    check_against_anew(directory, drafter, 1e-5)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_half_precision_drafters_are_multiplied_without_further_rounding(tmp_path: Path, kind: str) -> None:
    target = random_llama(num_hidden_layers=4)
    drafter = TinyDrafter(kind, target, rows=SOME_ROWS)
    directory = write_drafter_engine(tmp_path / "engine", drafter, SPECULATOR[kind], dtype=torch.float16)
    rounded(target, torch.float16)
    for value in drafter.parameters():
        value.data = value.data.half().float()
    check_against_anew(directory, drafter, 1e-5)


def test_tables_that_are_the_targets_are_held_once(tmp_path: Path, target: LlamaForCausalLM) -> None:
    drafter = TinyDrafter("eagle", target, own_head=True, own_embedding=True)
    drafter.named["lm_head.weight"].data = target.lm_head.weight.data.clone()
    drafter.named["vocab_embedding.weight"].data = target.model.embed_tokens.weight.data.clone()
    engine = loaded(write_drafter_engine(tmp_path / "engine", drafter, STATIC))
    held = engine._proposer._network._decoder.weights
    assert held.embedding is engine._decoder.weights.embedding
    assert held.head is engine._decoder.weights.head


def change(directory: Path, kind: str, tensors: dict[str, torch.Tensor | None], config: dict[str, object]) -> None:
    """Replace tensors (None: leave out) and keys of the drafter's config."""
    place = directory if kind == "eagle" else directory / "speculator"
    path = place / "rank0.safetensors"
    stored = {**load_file(path), **tensors}
    save_file({name: value for name, value in stored.items() if value is not None}, path)
    text = json.loads((place / "config.json").read_text())
    (text["pretrained_config"]["eagle_net_config"] if kind == "eagle" else text["pretrained_config"]).update(config)
    (place / "config.json").write_text(json.dumps(text))


NET = "eagle_nets.0"
BROKEN: dict[str, tuple[str, dict[str, object], dict[str, torch.Tensor | None], dict[str, object], str]] = {
    "fc missing": (
        "eagle",
        {},
        {f"{NET}.drafter.fc.weight": None},
        {},
        r"no tensor eagle_nets\.0\.drafter\.fc\.weight",
    ),
    "several at once": (
        "eagle",
        {},
        {
            f"{NET}.drafter.layers.0.post_layernorm.weight": None,
            f"{NET}.drafter.layers.0.mlp.proj.weight": torch.zeros(64, 79),
        },
        {},
        r"2 problems: .*post_layernorm.*\[64, 79\] where \[64, 80\] fits",
    ),
    "fc of a wider target": ("eagle", {}, {f"{NET}.drafter.fc.weight": torch.zeros(64, 96)}, {}, r"\[64, 96\]"),
    "EAGLE-3 fc in an EAGLE net": ("eagle", {}, {f"{NET}.drafter.fc.weight": torch.zeros(64, 192)}, {}, r"\[64, 192\]"),
    "hidden size": ("eagle", {}, {}, {"hidden_size": 32}, "hidden size is 32 and the target's 64"),
    "vocabulary": ("eagle", {}, {}, {"vocab_size": 90}, "90 tokens and the target 96"),
    "reduced without d2t": ("eagle", {"rows": SOME_ROWS}, {f"{NET}.d2t": None}, {}, r"no tensor eagle_nets\.0\.d2t"),
    "reduced without a head": ("eagle", {"rows": SOME_ROWS}, {f"{NET}.lm_head.weight": None}, {}, "no head"),
    "d2t beyond the vocabulary": (
        "eagle",
        {"rows": SOME_ROWS},
        {f"{NET}.d2t": torch.tensor(SOME_ROWS)},
        {},
        "token 96, outside 0..95",
    ),
    "d2t below zero": ("eagle", {"rows": SOME_ROWS}, {f"{NET}.d2t": torch.full((10,), -1)}, {}, "token -1, outside"),
    "d2t twice": ("eagle", {"rows": SOME_ROWS}, {f"{NET}.d2t": -torch.arange(10)}, {}, "two rows to one token"),
    "d2t of another length": ("eagle", {"rows": SOME_ROWS}, {f"{NET}.d2t": torch.zeros(9, dtype=torch.int64)}, {}, "9"),
    "d2t in 32 bit": ("eagle", {"rows": SOME_ROWS}, {f"{NET}.d2t": torch.zeros(10, dtype=torch.int32)}, {}, "not I64"),
    "eagle3 of another target": ("eagle3", {"own_head": True}, {"eagle3.fc.weight": torch.zeros(64, 144)}, {}, "144"),
    "eagle3 without a state norm": (
        "eagle3",
        {"own_head": True},
        {"eagle3.layers.0.hidden_norm.weight": None},
        {},
        "hidden_norm",
    ),
    "eagle3 with qkv of an ordinary layer": (
        "eagle3",
        {"own_head": True},
        {"eagle3.layers.0.attention.qkv.weight": torch.zeros(128, 64)},
        {},
        r"\[128, 64\] where \[128, 128\] fits",
    ),
    "eagle3 taps beyond the target": ("eagle3", {"own_head": True}, {}, {"taps": [2, 3, 5]}, "taps"),
    "eagle3 taps missing": ("eagle3", {"own_head": True}, {}, {"taps": None}, "taps"),
    "mtp of another size": ("mtp", {}, {}, {"hidden_size": 32}, "hidden size is 32"),
    "mtp without enorm": ("mtp", {}, {"mtp.enorm.weight": None}, {}, r"mtp\.enorm\.weight"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_missing_or_does_not_fit_is_named(tmp_path: Path, target: LlamaForCausalLM, name: str) -> None:
    kind, fields, tensors, config, message = BROKEN[name]
    drafter = TinyDrafter(kind, target, **fields)
    directory = write_drafter_engine(tmp_path / "engine", drafter, SPECULATOR[kind])
    loaded(directory)
    change(directory, kind, tensors, config)
    with pytest.raises(Failure, match=message):
        loaded(directory)


BAD_TREES: dict[str, tuple[dict[str, object], str]] = {
    "neither": ({"max_draft_len": 3, "depth": 2}, "neither choices nor dynamic_top_k"),
    "no parent": ({"max_draft_len": 3, "depth": 2, "choices": [[0], [1, 0]]}, r"\[1, 0\] has no parent \[1\]"),
    "too deep": ({"max_draft_len": 3, "depth": 1, "choices": [[0], [0, 0]]}, "deeper than the 1 drafting"),
    "rank beyond the head": ({"max_draft_len": 3, "depth": 1, "choices": [[0], [10]]}, "more than the 10 tokens"),
    "negative": ({"max_draft_len": 3, "depth": 1, "choices": [[-1]]}, "no path of ranks"),
    "no branches": ({"max_draft_len": 3, "depth": 2, "dynamic_top_k": 0}, "dynamic_top_k is 0"),
}


@pytest.mark.parametrize("name", BAD_TREES)
def test_trees_that_cannot_be_grown_are_refused(tmp_path: Path, target: LlamaForCausalLM, name: str) -> None:
    speculator, message = BAD_TREES[name]
    drafter = TinyDrafter("eagle", target, rows=SOME_ROWS)
    with pytest.raises(Failure, match=message):
        loaded(write_drafter_engine(tmp_path / "engine", drafter, speculator))


def test_a_narrow_drafter_cannot_borrow_the_targets_embedding(tmp_path: Path, target: LlamaForCausalLM) -> None:
    drafter = TinyDrafter("eagle3", target, hidden=48, rows=SOME_ROWS)
    with pytest.raises(Failure, match="48 and the target's 64: it has no embedding of its own"):
        loaded(write_drafter_engine(tmp_path / "engine", drafter, CHAIN))


def test_an_eagle_net_over_pipeline_stages_is_refused(tmp_path: Path, target: LlamaForCausalLM) -> None:
    own = TinyDrafter("eagle", target).config(torch.float32)
    pretrained = {"architecture": "EagleForCausalLM", "eagle_net_config": own}
    block = {"kind": "eagle", **STATIC}
    directory = write_engine(tmp_path / "engine", target, speculator=block, pp_size=2, pretrained=pretrained)
    with pytest.raises(Failure, match="pipeline"):
        loaded(directory)


def test_lengths_beyond_the_drafter_are_refused(tmp_path: Path, target: LlamaForCausalLM) -> None:
    directory = write_drafter_engine(tmp_path / "one", TinyDrafter("eagle", target), STATIC)
    change(
        directory, "eagle", {}, {"rotary_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64}
    )
    with pytest.raises(Failure, match="64 tokens"):
        loaded(directory)
    path = write_drafter_engine(
        tmp_path / "two", TinyDrafter("mtp", target), CHAIN, sizes=Sizes(max_seq_len=60, kv_cache_tokens=600)
    )
    (path / "speculator" / "rank0.safetensors").unlink()
    with pytest.raises(Failure, match=r"rank0\.safetensors is missing"):
        loaded(path)
