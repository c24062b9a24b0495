"""From the authors' files of EAGLE, EAGLE-3 and MTP to a reference engine that speculates with them."""

from pathlib import Path

import pytest
from tests.engine.tiny_engines import loaded, run, tokens_of
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.fakes.tiny_speculators import (
    Weights,
    eagle3_weights,
    eagle_weights,
    layer_config,
    mtp_weights,
    random_arrays,
    vocabulary_map,
    write_heads_recipe,
    write_speculator,
)

from draftyard.nouns.blueprint import StepKind
from draftyard.nouns.generation import GenerationRequest
from draftyard.verbs.compile import make_engine
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.making import Workplace

REDUCED = {**random_arrays({"lm_head.weight": (20, 32)}), **vocabulary_map(20, 50)}
NARROW = layer_config(hidden_size=24, head_dim=6, draft_vocab_size=20)
CASES: dict[str, tuple[str, Weights, dict[str, object], int]] = {
    "eagle with the default tree": (
        "{kind: eagle, path: heads, num_eagle_layers: 2, max_draft_len: 4}",
        eagle_weights(embedding=False),
        layer_config(),
        1,
    ),
    "eagle over two ranks": (
        "{kind: eagle, path: heads, num_eagle_layers: 2, choices: [[0], [1], [0, 0]]}",
        eagle_weights(embedding=False),
        layer_config(),
        2,
    ),
    "eagle grown by confidence": (
        "{kind: eagle, path: heads, num_eagle_layers: 3, dynamic_tree_max_top_k: 3, max_draft_len: 6}",
        eagle_weights(embedding=False, bias=False),
        layer_config(),
        1,
    ),
    "eagle with a reduced head": (
        "{kind: eagle, path: heads, num_eagle_layers: 2, choices: [[0], [0, 0]]}",
        {**eagle_weights(embedding=False), **REDUCED},
        layer_config(draft_vocab_size=20),
        1,
    ),
    "eagle3 narrower than the target": (
        "{kind: eagle3, path: heads, depth: 3}",
        eagle3_weights(NARROW, target_hidden=32, embedding=True),
        NARROW,
        1,
    ),
    "eagle3 with the target's head": (
        "{kind: eagle3, path: heads, depth: 2, dynamic_tree_max_top_k: 3}",
        eagle3_weights(draft_rows=None),
        layer_config(draft_vocab_size=50),
        1,
    ),
    "mtp": ("{kind: mtp, path: heads, max_draft_len: 3}", mtp_weights(), layer_config(), 1),
    "mtp with its own head": ("{kind: mtp, path: heads, max_draft_len: 3}", mtp_weights(head=True), layer_config(), 1),
}


def engines(root: Path, recipe: Path) -> dict[str, Path]:
    """Every engine that a recipe asks for, by its speculator's kind."""
    made: dict[str, Path] = {}
    found: dict[str, Path] = {}
    for step in draw_recipe(recipe, None).blueprint.steps:
        if step.kind not in (StepKind.CHECKPOINT, StepKind.ENGINE):
            continue
        place = root / "made" / step.key
        place.mkdir(parents=True)
        workplace = Workplace(place, made.__getitem__, tuple(map(Path, step.sources)), lambda share, words: None)
        made[step.key] = place
        if step.kind is StepKind.CHECKPOINT:
            make_checkpoint(step, workplace)
        else:
            make_engine(step, workplace)
            config = step.parameters["config"]
            found[str(config["draftyard"]["speculator"]["kind"])] = place  # type: ignore[index, call-overload]
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_is_built_from_the_authors_files_speculates_and_keeps_the_text(tmp_path: Path, name: str) -> None:
    speculator, weights, config, tp_size = CASES[name]
    target = config_of()
    write_model(tmp_path / "target", target, random_weights(target))
    write_speculator(tmp_path / "heads", weights, config)
    found = engines(tmp_path, write_heads_recipe(tmp_path, speculator, tp_size=tp_size))
    kind = speculator[len("{kind: ") :].split(",")[0]
    requests = [GenerationRequest(str(place), (7, place, 3), 24) for place in range(5)]
    plain, drafted = run(loaded(found["none"]), requests), run(loaded(found[kind]), requests)
    for request in requests:
        assert tokens_of(drafted[request.request_id]) == tokens_of(plain[request.request_id])
        statistics = drafted[request.request_id][-1].statistics
        assert statistics.drafted >= statistics.steps > 0
