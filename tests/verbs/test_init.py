"""The recipe that is written for a model names what it was given to speculate with, and plans as it is."""

from pathlib import Path

import pytest
from tests.fakes.tiny_model import config_of, write_model
from tests.fakes.tiny_speculators import (
    Weights,
    eagle3_weights,
    eagle_weights,
    layer_config,
    medusa_weights,
    mtp_weights,
    write_speculator,
)

from draftyard.nouns.errors import Failure
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.init import InitOptions, init

HEADS: dict[str, Weights] = {
    "medusa": medusa_weights(3),
    "eagle": eagle_weights(embedding=False),
    "eagle3": eagle3_weights(),
    "mtp": mtp_weights(),
}


def written(root: Path, draft: Path | None) -> Path:
    return init(write_model(root / "target"), InitOptions(root / "recipe.yaml", draft, root / "prompts"))


@pytest.mark.parametrize("kind", [None, "draft_target", *HEADS])
def test_what_is_given_to_speculate_with_is_named(tmp_path: Path, kind: str | None) -> None:
    if kind == "draft_target":
        write_model(tmp_path / "draft", config_of(num_hidden_layers=1))
    elif kind is not None:
        write_speculator(tmp_path / "draft", HEADS[kind], layer_config())
    recipe = written(tmp_path, None if kind is None else tmp_path / "draft")
    drawing = draw_recipe(recipe, None)
    kinds = [variant.speculator.value for variant in drawing.blueprint.variants]
    assert kinds == ["none", "ngram", *([] if kind is None else [kind])]


def test_heads_that_contradict_themselves_are_refused_at_once(tmp_path: Path) -> None:
    heads = write_speculator(tmp_path / "draft", HEADS["eagle"], layer_config(hidden_size=48))
    with pytest.raises(Failure, match="hidden_size is 48, fc gives 32"):
        written(tmp_path, heads)
    assert not (tmp_path / "recipe.yaml").exists()
