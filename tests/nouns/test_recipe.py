"""What a recipe must not say, whatever its models are."""

import pytest
import yaml
from pydantic import ValidationError
from tests.fakes.tiny_recipe import TEXT

from draftyard.nouns.recipe import DEFAULT_TREE_NODES, Recipe, Speculator, dynamic_tree_nodes


def parsed(*changes: tuple[str, str]) -> Recipe:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return Recipe.model_validate(yaml.safe_load(text))


def test_the_plain_recipe_is_accepted() -> None:
    assert parsed().name == "tiny"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_batch_size: 2", "max_batch_size: true", "valid integer"),
        ("max_batch_size: 2", 'max_batch_size: "2"', "valid integer"),
        ("max_batch_size: 2", "max_batch_size: 2.0", "valid integer"),
        ("max_batch_size: 2", "max_batch_size: 0", "greater than or equal to 1"),
        ("lanes: [reference]", "lanes: [reference, reference]", "lanes lists a value twice"),
        ("precisions: [fp32]", "precisions: [fp32, fp16, fp32]", "precisions lists a value twice"),
        ("max_draft_len: 3", "max_draft_len: 5000", "max_draft_len 5000 must be below limits.max_seq_len 64"),
        ("max_input_len: 32", "max_input_len: 64", "max_input_len must be below max_seq_len"),
        ("concurrency: [1, 2]", "concurrency: [2, 1]", "rising numbers"),
    ],
)
def test_slips_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parsed((old, new))


NGRAM = "{kind: ngram, max_draft_len: 3}"


def speculator(text: str) -> Speculator:
    """The first speculator of a recipe that names it so; longer sequences, so that large trees fit."""
    return parsed((NGRAM, text), ("max_seq_len: 64", "max_seq_len: 640")).speculators[0]


@pytest.mark.parametrize(
    ("text", "nodes", "depth"),
    [
        ("{kind: ngram}", 4, 4),
        ("{kind: draft_target, path: d, max_draft_len: 5}", 5, 5),
        ("{kind: medusa, path: h}", DEFAULT_TREE_NODES, 4),
        ("{kind: medusa, path: h, heads: 2, max_draft_len: 9}", 9, 2),
        ("{kind: medusa, path: h, choices: [[0], [0, 0], [1]]}", 3, 2),
        ("{kind: medusa, path: h, choices: [[0], [0, 0], [1]], max_draft_len: 8}", 8, 2),
        ("{kind: eagle, path: h}", DEFAULT_TREE_NODES, 4),
        ("{kind: eagle, path: h, num_eagle_layers: 2, choices: [[0], [0, 0]]}", 2, 2),
        ("{kind: eagle, path: h, num_eagle_layers: 3, dynamic_tree_max_top_k: 2}", 10, 3),
        ("{kind: eagle, path: h, dynamic_tree_max_top_k: 9}", DEFAULT_TREE_NODES, 4),
        ("{kind: eagle3, path: h}", 4, 4),
        ("{kind: eagle3, path: h, depth: 6}", 6, 6),
        ("{kind: eagle3, path: h, depth: 2, dynamic_tree_max_top_k: 3}", 12, 2),
        ("{kind: mtp, path: h}", 1, 1),
        ("{kind: mtp, path: h, max_draft_len: 3}", 3, 3),
        ("{kind: lookahead}", 83, 6),
        ("{kind: lookahead, window_size: 2, ngram_size: 2, verification_set_size: 1}", 2, 1),
    ],
)
def test_each_way_says_how_much_is_verified_and_how_deep(text: str, nodes: int, depth: int) -> None:
    found = speculator(text)
    assert (found.max_draft_len, found.draft_depth) == (nodes, depth)


def test_nodes_of_a_tree_grown_by_confidence() -> None:
    """The formula of TensorRT-LLM 1.2.1: N on the first level, N x N on each further one."""
    assert [dynamic_tree_nodes(3, depth) for depth in (1, 2, 4)] == [3, 12, 30]


@pytest.mark.parametrize("kind", ["draft_target", "medusa", "eagle", "eagle3", "mtp"])
def test_weights_have_a_path(kind: str) -> None:
    """As reported in sgl-project/sglang#36528: without one, the target would silently draft for itself."""
    with pytest.raises(ValidationError, match="path"):
        speculator(f"{{kind: {kind}}}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{kind: medusa, path: ''}", "at least 1 character"),
        ("{kind: medusa, path: h, choices: []}", "at least 1 item"),
        ("{kind: medusa, path: h, choices: [[0], [-1]]}", "greater than or equal to 0"),
        ("{kind: medusa, path: h, choices: [[0], [true]]}", "valid integer"),
        ("{kind: medusa, path: h, choices: [[0], ['0']]}", "valid integer"),
        ("{kind: medusa, path: h, choices: [0, 1]}", "valid tuple"),
        ("{kind: medusa, path: h, heads: 0}", "greater than or equal to 1"),
        ("{kind: medusa, path: h, num_heads: 2}", "not permitted"),
        ("{kind: eagle, path: h, choices: [[0]], dynamic_tree_max_top_k: 2}", "describe two trees"),
        ("{kind: eagle, path: h, num_eagle_layers: 0}", "greater than or equal to 1"),
        ("{kind: eagle3, path: h, choices: [[0]]}", "not permitted"),
        ("{kind: mtp, path: h, max_draft_len: 1.0}", "valid integer"),
        ("{kind: lookahead, ngram_size: 1}", "greater than or equal to 2"),
        ("{kind: lookahead, path: h}", "not permitted"),
        ("{kind: redrafter, path: h}", "does not match any of the expected tags"),
    ],
)
def test_slips_of_a_speculator_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        speculator(text)
