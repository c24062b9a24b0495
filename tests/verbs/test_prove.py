"""What is verified of a packaged variant: acceptance is counted by depth, also of a tree."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tests.fakes.tiny_recipe import TEXT

from draftyard.nouns.recipe import Recipe
from draftyard.nouns.timeline import Outcome, Timeline, TokenEvent
from draftyard.rules.acceptance_figures import pooled_acceptance
from draftyard.verbs.drawing import Drawing, RecipeFile
from draftyard.verbs.prove import _depth

SPECULATORS = [
    {"kind": "medusa", "path": "heads", "choices": [[0], [1], [0, 0], [0, 0, 0]]},
    {"kind": "eagle3", "path": "eagle3", "dynamic_tree_max_top_k": 4, "depth": 3},
    {"kind": "ngram", "max_draft_len": 5},
]
RECIPE = Recipe.model_validate({**yaml.safe_load(TEXT), "speculators": SPECULATORS})
DRAWING = Drawing(RecipeFile(Path("recipe.yaml"), RECIPE), None, (), None, (), heads=(object(), object()))


@pytest.mark.parametrize(("way", "nodes", "depth"), [("medusa", 4, 3), ("eagle3", 36, 3), ("ngram", 5, 5)])
def test_positions_are_depths(way, nodes, depth):
    speculator = next(one for one in RECIPE.speculators if one.kind == way)
    assert speculator.max_draft_len == nodes
    packaged = SimpleNamespace(variant=SimpleNamespace(name=f"{way}-fp32-cpu-tp1"))
    assert _depth(packaged, DRAWING) == depth
    # Each step drafts a path to the bottom: the engine counts depths, not nodes.
    events = (TokenEvent(0.1, 1), TokenEvent(0.2, 2 + depth), TokenEvent(0.3, 4 + depth))
    timeline = Timeline(Outcome.SUCCESS, events, 0.3, drafted=2 * depth, accepted=depth + 1)
    found = pooled_acceptance([timeline], depth)
    assert (len(found.per_position), len(found.histogram)) == (depth, depth + 1)
    assert found.acceptance_rate == (depth + 1) / (2 * depth)


def test_plain_decoding_has_no_depth():
    packaged = SimpleNamespace(variant=SimpleNamespace(name="none-fp32-cpu-tp1"))
    assert _depth(packaged, DRAWING) is None
