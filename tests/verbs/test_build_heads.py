"""From published weights to running engines: whatever drafts, greedy texts are those of plain decoding."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.fakes.tiny_speculators import (
    eagle3_weights,
    eagle_weights,
    layer_config,
    medusa_weights,
    mtp_weights,
    random_arrays,
    vocabulary_map,
    write_heads_recipe,
    write_speculator,
)

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import Failure
from draftyard.nouns.generation import GenerationRequest
from draftyard.verbs.build import build
from draftyard.verbs.build_choices import BuildOptions
from draftyard.verbs.compile import make_engine
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.making import Workplace
from draftyard.verbs.plan import plan

WAYS = {
    "medusa": "{kind: medusa, path: medusa, choices: [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]}",
    "medusa_2": "{kind: medusa, path: projected, heads: 2, max_draft_len: 8}",
    "eagle": "{kind: eagle, path: eagle, num_eagle_layers: 3, max_draft_len: 7}",
    "eagle_2": "{kind: eagle, path: eagle, num_eagle_layers: 3, dynamic_tree_max_top_k: 2}",
    "eagle_3": "{kind: eagle, path: reduced, num_eagle_layers: 2, choices: [[0], [1], [0, 0]]}",
    "eagle3": "{kind: eagle3, path: eagle3, depth: 3}",
    "eagle3_2": "{kind: eagle3, path: eagle3, depth: 3, dynamic_tree_max_top_k: 2}",
    "mtp": "{kind: mtp, path: mtp, max_draft_len: 3}",
}


class Silent:
    """Nobody is told anything."""

    def started(self, step: Step) -> None:
        """Not of interest."""

    def progressed(self, step: Step, share: float, words: str) -> None:
        """Not of interest."""

    def finished(self, step: Step, made: bool, seconds: float) -> None:
        """Not of interest."""

    def told(self, words: str) -> None:
        """Not of interest."""


@dataclass(frozen=True)
class Works:
    """What a recipe came to: directories by label, and the recipe."""

    recipe: Path
    out: Path
    made: dict[str, Path]


def write_everything(root: Path, **changes: object) -> None:
    """A target with two tokens that follow each other always, and every speculator of the tests."""
    config = config_of(**changes)  # type: ignore[arg-type]
    weights = random_weights(config)
    write_model(root / "target", config, weights)
    table = weights["model.embed_tokens.weight"]
    write_speculator(root / "medusa", medusa_weights(3))
    write_speculator(root / "projected", medusa_weights(3, vocabulary=50), file="medusa_lm_head.safetensors")
    write_speculator(root / "eagle", {**eagle_weights(bias=False), "embed_tokens.weight": table}, layer_config())
    reduced = {
        **eagle_weights(embedding=False),
        **random_arrays({"lm_head.weight": (20, 32)}),
        "d2t": vocabulary_map(20, 50)["d2t"],
    }
    write_speculator(root / "reduced", reduced, layer_config(draft_vocab_size=20))
    write_speculator(root / "eagle3", eagle3_weights(), layer_config(draft_vocab_size=20))
    write_speculator(root / "mtp", mtp_weights(), layer_config())


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Works:
    root = tmp_path_factory.mktemp("works")
    write_everything(root)
    recipe = write_heads_recipe(root, *WAYS.values())
    _, built = build(recipe, BuildOptions(root / "out"), Silent())
    return Works(recipe, root / "out", {f"{one.kind} {one.label.partition(' ')[2]}": one.path for one in built})


def generated(directory: Path, tokens: int = 24) -> dict[str, list[int]]:
    """Greedy texts of a few prompts, decoded together."""
    engine = load_engine(directory, open_tensor_file, threads=1)
    prompts = {"a": (1, 5, 9, 17), "b": (1, 30, 31, 32, 33, 34, 12), "c": (4,)}
    found: dict[str, list[int]] = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        engine.submit(GenerationRequest(name, prompt, tokens))
    while engine.has_work:
        for event in engine.step():
            found[event.request_id] += event.token_ids
    return found


def variants(works: Works) -> dict[str, Path]:
    return {name.split()[1].split("-")[0]: path for name, path in works.made.items() if name.startswith("engine ")}


def test_every_way_gives_the_text_of_plain_decoding(works: Works) -> None:
    engines = variants(works)
    plain = generated(engines["none"])
    assert all(len(text) == 24 for text in plain.values())
    assert len(engines) == 1 + len(WAYS)
    for name, path in engines.items():
        assert generated(path) == plain, name


def test_what_lies_in_an_engine_and_what_it_is_told(works: Works) -> None:
    engines = variants(works)
    configs = {name: json.loads((path / "config.json").read_text()) for name, path in engines.items()}
    blocks = {name: config["draftyard"]["speculator"] for name, config in configs.items()}
    assert blocks["medusa"] == {
        "kind": "medusa",
        "max_draft_len": 6,
        "depth": 3,
        "choices": [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]],
        "heads": 3,
    }
    assert (blocks["medusa_2"]["heads"], blocks["medusa_2"]["depth"], len(blocks["medusa_2"]["choices"])) == (2, 2, 8)
    assert (blocks["eagle"]["depth"], len(blocks["eagle"]["choices"]), blocks["eagle"]["dynamic_top_k"]) == (3, 7, None)
    assert blocks["eagle_2"] == {
        "kind": "eagle",
        "max_draft_len": 10,
        "depth": 3,
        "choices": None,
        "dynamic_top_k": 2,
        "max_non_leaves_per_layer": 10,
    }
    assert blocks["eagle_3"]["choices"] == [[0], [1], [0, 0]]
    modes = {name: config["build_config"]["speculative_decoding_mode"] for name, config in configs.items()}
    assert (modes["none"], modes["medusa"], modes["eagle"], modes["mtp"]) == (1, 4, 32, 2)
    beside = {name for name, path in engines.items() if (path / "speculator" / "config.json").is_file()}
    assert beside == {name for name, block in blocks.items() if block["kind"] in ("eagle3", "mtp")}
    drafter = json.loads((engines["mtp"] / "speculator" / "config.json").read_text())
    assert drafter["pretrained_config"]["architecture"] == "MtpDrafter"
    assert drafter["draftyard"]["speculator"]["kind"] == "none"


def test_files_are_shared_and_repositories_complete(works: Works) -> None:
    plain = next(path for name, path in works.made.items() if name == "checkpoint target fp32 tp1 pp1")
    repositories = [path for name, path in works.made.items() if name.startswith("repository ")]
    assert len(repositories) == 1 + len(WAYS)
    files = {(path / "engines/tensorrt_llm/rank0.safetensors").stat().st_ino for path in repositories}
    assert (plain / "rank0.safetensors").stat().st_ino in files
    assert sum((path / "engines/tensorrt_llm/speculator/rank0.safetensors").is_file() for path in repositories) == 3


def test_a_plan_tells_memory_of_heads_apart(works: Works) -> None:
    told = plan(works.recipe, works.out)
    assert {step.state.value for step in told.steps} == {"have"}
    parts = {memory.variant: {part.part for part in memory.parts} for memory in told.memory}
    assert "target with medusa weights" in parts["medusa-fp32-cpu-tp1"]
    assert {"target with eagle KV cache", "eagle network KV cache"} <= parts["eagle-fp32-cpu-tp1"]
    assert {"target weights", "mtp weights", "mtp KV cache"} <= parts["mtp-fp32-cpu-tp1"]
    assert "eagle: fc has no bias: zeros stand for it" in told.notes


@pytest.mark.parametrize(
    ("changes", "tp_size", "pp_size", "precision", "names"),
    [
        ({"tie_word_embeddings": True}, 1, 1, "fp32", ["medusa", "eagle", "eagle3", "mtp"]),
        ({"attention_bias": True}, 2, 1, "fp32", ["medusa", "eagle", "eagle3_2", "mtp"]),
        ({"model_type": "qwen2"}, 2, 2, "fp32", ["medusa", "eagle3", "mtp"]),
        ({"model_type": "qwen3"}, 1, 1, "bf16", ["medusa", "eagle_2", "eagle3", "mtp"]),
    ],
    ids=["tied", "biases on two ranks", "two stages of two ranks", "bfloat16"],
)
def test_other_targets_and_cuts(
    tmp_path: Path, changes: dict[str, object], tp_size: int, pp_size: int, precision: str, names: list[str]
) -> None:
    write_everything(tmp_path, **changes)
    ways = [WAYS[name] for name in names]
    recipe = write_heads_recipe(tmp_path, *ways, tp_size=tp_size, pp_size=pp_size, precision=precision)
    kinds = (StepKind.CALIBRATION, StepKind.CHECKPOINT, StepKind.ENGINE)
    _, built = build(recipe, BuildOptions(tmp_path / "out", kinds), Silent())
    engines = [one.path for one in built if one.kind == "engine"]
    assert len(engines) == 1 + len(names)
    texts = [generated(path, 12) for path in engines]
    assert all(text == texts[0] for text in texts)


def test_a_perfect_head_is_accepted(tmp_path: Path) -> None:
    """A target that repeats its last token, and heads that predict no change: every level of the chain stands."""
    config = config_of(num_hidden_layers=1)
    weights = random_weights(config)
    for name in weights:
        if "o_proj" in name or "down_proj" in name:
            weights[name][:] = 0
    weights["model.norm.weight"][:] = 1
    table = np.random.default_rng(2).standard_normal((50, 32)).astype(np.float32)
    weights["model.embed_tokens.weight"] = table / np.linalg.norm(table, axis=1, keepdims=True)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    write_model(tmp_path / "target", config, weights)
    heads = {name: np.zeros_like(value) for name, value in medusa_weights(3).items()}
    write_speculator(tmp_path / "heads", heads)
    recipe = write_heads_recipe(tmp_path, "{kind: medusa, path: heads, choices: [[0], [0, 0], [0, 0, 0]]}")
    _, built = build(recipe, BuildOptions(tmp_path / "out", (StepKind.CHECKPOINT, StepKind.ENGINE)), Silent())
    engine = load_engine(built[-1].path, open_tensor_file, threads=1)
    engine.submit(GenerationRequest("a", (1, 5, 9), 17))
    statistics = None
    while engine.has_work:
        for event in engine.step():
            statistics = event.statistics or statistics
    assert statistics is not None
    assert (statistics.steps, statistics.accepted) == (4, 12)


def engine_step(works: Works, kind: str) -> tuple[Step, dict[str, Path]]:
    """An engine step of the recipe, and the directories of its inputs."""
    blueprint = draw_recipe(works.recipe, None).blueprint
    step = next(
        one for one in blueprint.steps if one.kind is StepKind.ENGINE and one.label.startswith(f"engine {kind}-")
    )
    labels = {one.key: one.label for one in blueprint.steps}
    return step, {key: works.made[f"checkpoint {labels[key].partition(' ')[2]}"] for key in step.inputs}


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("medusa", "medusa_heads.2.medusa_layers.0.linear.bias"),
        ("eagle", "eagle_nets.2.drafter.fc.bias"),
        ("mtp", "mtp.eh_proj.weight"),
    ],
)
def test_an_engine_is_not_made_of_a_checkpoint_without_a_head(
    works: Works, tmp_path: Path, kind: str, lost: str
) -> None:
    step, inputs = engine_step(works, kind)
    broken: dict[str, Path] = {}
    for key, path in inputs.items():
        broken[key] = tmp_path / key[:8]
        broken[key].mkdir()
        (broken[key] / "config.json").write_bytes((path / "config.json").read_bytes())
        tensors = load_file(path / "rank0.safetensors")
        save_file({name: value for name, value in tensors.items() if name != lost}, broken[key] / "rank0.safetensors")
    (tmp_path / "staging").mkdir()
    with pytest.raises(Failure, match=lost):
        make_engine(step, Workplace(tmp_path / "staging", broken.__getitem__, (), lambda share, words: None))


def test_an_engine_has_as_many_checkpoints_as_its_speculator(works: Works, tmp_path: Path) -> None:
    step, inputs = engine_step(works, "mtp")
    alone = Step(step.kind, step.label, step.parameters, step.inputs[:1], step.toolchain)
    with pytest.raises(ValueError, match="speculator mtp is made of 2 checkpoints, not 1"):
        make_engine(alone, Workplace(tmp_path, partial(dict.__getitem__, inputs), (), lambda share, words: None))
