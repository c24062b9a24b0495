"""Which trees are accepted, what is said of the others, and what the tree made for a recipe without one looks like."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.recipe import Choices, EagleSpeculator, MedusaSpeculator, Speculator
from draftyard.rules.trees import choices_text, default_tree, path_problems, resolved_tree, speculator_problems

ANY: TypeAdapter[Speculator] = TypeAdapter(Speculator)


def speculator(kind: str, **keys: object) -> Speculator:
    return ANY.validate_python({"kind": kind, "path": "weights", **keys})


def messages(kind: str, stored: int | None = None, **keys: object) -> list[str]:
    return [problem.message for problem in speculator_problems(speculator(kind, **keys), stored)]


def grown(growth: list[int], levels: int) -> Choices:
    """A tree by valid growth: each number picks one of the places where a node may be added."""
    tree: list[tuple[int, ...]] = [(0,)]
    for number in growth:
        places = [path for path in [(), *tree] if len(path) < levels]
        parent = places[number % len(places)]
        children = sum(1 for path in tree if path[:-1] == parent)
        tree.append((*parent, children))
    return tuple(tree)


trees = st.builds(grown, st.lists(st.integers(0, 10_000), max_size=30), st.integers(2, 5))


@given(trees, st.randoms())
def test_a_tree_by_valid_growth_is_accepted_in_any_order(tree: Choices, random: object) -> None:
    shuffled = list(tree)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    depth = max(map(len, tree))
    assert messages("medusa", depth, choices=shuffled) == []
    if depth > 1:
        widest = max(len([path for path in tree if len(path) == level]) for level in range(1, depth + 1))
        assert messages("eagle", choices=shuffled, num_eagle_layers=depth, max_non_leaves_per_layer=widest) == []


@given(trees, st.integers(0, 10_000))
def test_a_node_taken_away_below_or_before_others_is_missed(tree: Choices, number: int) -> None:
    needed = [
        path
        for path in tree
        if any(other[: len(path)] == path and other != path for other in tree) or (*path[:-1], path[-1] + 1) in tree
    ]
    if not needed:
        return
    gone = needed[number % len(needed)]
    (problem,) = path_problems(tuple(path for path in tree if path != gone))
    assert f"without its prefix {list(gone)}" in problem.message or f"without {list(gone)}: ranks" in problem.message


@given(trees, st.integers(0, 10_000))
def test_a_node_named_twice_is_told(tree: Choices, number: int) -> None:
    path = tree[number % len(tree)]
    (problem,) = path_problems((*tree, path))
    assert problem.message == f"choices hold {list(path)} 2 times"


@given(trees)
def test_a_tree_that_is_too_large_or_too_deep_is_told(tree: Choices) -> None:
    depth = max(map(len, tree))
    assert messages("medusa", depth, choices=tree, max_draft_len=len(tree)) == []
    if len(tree) > 1:
        told = messages("medusa", depth, choices=tree, max_draft_len=len(tree) - 1)
        assert told == [f"choices hold {len(tree)} nodes, max_draft_len is {len(tree) - 1}"]
    if depth > 1:
        (told,) = messages("medusa", depth - 1, choices=tree)
        assert f"{depth} levels deep, and there are {depth - 1} Medusa heads" in told


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([[0], [2], [2, 0]], "choices hold [2] without [1]: ranks go up from 0 without a gap"),
        ([[0], [0, 0, 1]], "choices hold [0, 0, 1] without its prefix [0, 0]"),
        ([[1]], "choices hold [1] without [0]: ranks go up from 0 without a gap"),
        ([[0], [0, 1]], "choices hold [0, 1] without [0, 0]: ranks go up from 0 without a gap"),
        ([[], [0]], "choices hold an empty path"),
    ],
)
def test_lists_that_make_wrong_links_without_an_error(choices: list[list[int]], message: str) -> None:
    """TensorRT-LLM's own builder of masks takes these lists and links other nodes than those named."""
    assert messages("medusa", 4, choices=choices) == [message]


def test_fewer_heads_than_levels_name_the_path() -> None:
    """Two heads and a tree of three levels read past the logits (FasterDecoding/Medusa#81)."""
    (message,) = messages("medusa", 2, choices=[[0], [0, 0], [0, 0, 0]])
    assert message == "choices hold [0, 0, 0], 3 levels deep, and there are 2 Medusa heads"
    (message,) = messages("medusa", 5, heads=2, choices=[[0], [0, 0], [0, 0, 0]])
    assert "there are 2 Medusa heads" in message


def messages_for_heads(asked: int, stored: int) -> list[str]:
    found = speculator_problems(MedusaSpeculator(kind=SpeculatorKind.MEDUSA, path="h", heads=asked), stored)
    return [problem.message for problem in found]


def test_more_heads_than_are_stored_are_refused() -> None:
    """The tensors bound what can be asked for (NVIDIA/TensorRT-LLM#1795)."""
    assert messages_for_heads(4, 5) == []
    assert messages_for_heads(6, 5) == ["6 Medusa heads are asked for, 5 are stored"]


def test_one_level_is_a_tree_for_medusa_and_none_for_eagle() -> None:
    """The EAGLE runtime crashes on it (NVIDIA/TensorRT-LLM#10323); and four nodes are more than one."""
    flat = [[0], [1], [2], [3]]
    assert messages("medusa", 1, choices=flat) == []
    assert messages("medusa", 1, choices=flat, max_draft_len=1) == ["choices hold 4 nodes, max_draft_len is 1"]
    for keys in ({"choices": flat, "num_eagle_layers": 4}, {"num_eagle_layers": 1}, {"choices": [[0]]}):
        assert any("a tree of one level crashes" in message for message in messages("eagle", **keys))


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("eagle", {"choices": [[0], [0, 0]], "num_eagle_layers": 4}, "2 levels deep; num_eagle_layers is 4"),
        ("eagle", {"choices": [[0], [0, 0], [0, 0, 0]], "num_eagle_layers": 2}, "3 levels deep; num_eagle_layers is 2"),
        ("medusa", {"max_draft_len": 100_000}, "Medusa verifies 1024 drafted tokens at most, not 100000"),
        ("eagle", {"max_draft_len": 257}, "EAGLE verifies 256 drafted tokens at most, not 257"),
        ("eagle", {"max_draft_len": 3}, "max_draft_len 3 does not reach the 4 levels"),
        ("eagle", {"dynamic_tree_max_top_k": 2, "max_draft_len": 3}, "max_draft_len 3 does not reach the 4 levels"),
        (
            "eagle",
            {
                "choices": [[0], [1], [2], [0, 0], [1, 0], [2, 0]],
                "num_eagle_layers": 2,
                "max_non_leaves_per_layer": 2,
            },
            "level 1 of choices has 3 nodes with children, max_non_leaves_per_layer is 2",
        ),
        ("eagle3", {"depth": 4, "max_draft_len": 5}, "a chain of depth 4 has 4 nodes, max_draft_len is 5"),
        (
            "eagle3",
            {"depth": 3, "dynamic_tree_max_top_k": 2, "max_draft_len": 11},
            "3 to 10 nodes, max_draft_len is 11",
        ),
        ("eagle3", {"depth": 3, "dynamic_tree_max_top_k": 2, "max_draft_len": 2}, "3 to 10 nodes, max_draft_len is 2"),
    ],
)
def test_sizes_that_do_not_go_together(kind: str, keys: dict[str, object], message: str) -> None:
    (told,) = messages(kind, **keys)
    assert message in told


def test_everything_wrong_is_told_at_once() -> None:
    told = messages("medusa", 2, choices=[[0], [2], [0, 0, 0]], max_draft_len=2)
    assert len(told) == 3


@settings(max_examples=60)
@given(st.integers(1, 80), st.integers(1, 6), st.one_of(st.none(), st.integers(1, 10)))
def test_the_tree_that_is_made_is_a_valid_one(nodes: int, levels: int, most: int | None) -> None:
    if nodes < levels:
        with pytest.raises(ValueError, match="do not reach"):
            default_tree(nodes, levels, most)
        return
    tree = default_tree(nodes, levels, most)
    assert (len(tree), max(map(len, tree))) == (nodes, levels)
    assert path_problems(tree) == []
    assert list(tree) == sorted(tree, key=lambda path: (len(path), path))
    for level in range(1, levels):
        parents = {path[:-1] for path in tree if len(path) == level + 1}
        assert len(parents) <= (most or nodes)


def expected_length(tree: Choices) -> float:
    """Sum over all nodes of the probability that the whole path is right, as the rule's own words say it."""
    total = 0.0
    for path in tree:
        product = 1.0
        for rank in path:
            product *= 1 / (2 * (rank + 1) ** 1.75)
        total += product
    return total


@pytest.mark.parametrize(("nodes", "levels"), [(3, 1), (4, 2), (5, 2), (5, 3)])
def test_no_tree_of_that_size_expects_more(nodes: int, levels: int) -> None:
    """Against every tree of this size and depth, by trying all subsets of the paths with ranks 0 to 3."""
    paths = [path for level in range(1, levels + 1) for path in itertools.product(range(4), repeat=level)]
    paths = [path for path in paths if sum(path) + len(path) <= nodes]
    best = 0.0
    for subset in itertools.combinations(paths, nodes):
        if max(map(len, subset)) == levels and not path_problems(subset):
            best = max(best, expected_length(subset))
    assert expected_length(default_tree(nodes, levels)) == pytest.approx(best)


def test_recipes_without_a_tree_get_one_and_chains_none() -> None:
    assert resolved_tree(speculator("medusa")) == default_tree(63, 4)
    assert resolved_tree(speculator("medusa"), heads=2) == default_tree(63, 2)
    assert resolved_tree(speculator("medusa"), heads=5) == default_tree(63, 4)
    assert resolved_tree(speculator("medusa", heads=5), heads=5) == default_tree(63, 5)
    assert resolved_tree(speculator("medusa", max_draft_len=2), heads=3) == ((0,), (0, 0))
    assert resolved_tree(speculator("medusa", choices=[[1], [0, 0], [0]])) == ((0,), (1,), (0, 0))
    assert resolved_tree(speculator("eagle")) == default_tree(63, 4, 10)
    assert resolved_tree(speculator("eagle", max_draft_len=4)) == tuple((0,) * level for level in (1, 2, 3, 4))
    assert resolved_tree(speculator("eagle", dynamic_tree_max_top_k=3)) is None
    assert resolved_tree(speculator("eagle3")) is None
    assert resolved_tree(ANY.validate_python({"kind": "ngram"})) is None


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_the_tree_of_a_recipe_without_one_passes_its_own_rules(kind: str) -> None:
    tree = resolved_tree(speculator(kind))
    assert messages(kind, 4, choices=tree) == []


def test_text_for_the_server() -> None:
    assert choices_text(((0,), (0, 0), (1,))) == "{0}, {0, 0}, {1}"


def test_speculators_without_a_tree_have_no_problem() -> None:
    for text in ({"kind": "ngram"}, {"kind": "lookahead"}, {"kind": "mtp", "path": "m"}):
        assert speculator_problems(ANY.validate_python(text)) == []
    assert isinstance(speculator("eagle"), EagleSpeculator)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("medusa", {}),
        ("medusa", {"heads": 5}),
        ("medusa", {"heads": 2, "max_draft_len": 9}),
        ("medusa", {"max_draft_len": 3}),
        ("eagle", {"num_eagle_layers": 3, "max_draft_len": 8}),
    ],
)
def test_a_recipe_knows_the_depth_of_its_own_tree(kind: str, keys: dict[str, object]) -> None:
    asked = speculator(kind, **keys)
    tree = resolved_tree(asked, heads=5)
    assert tree is not None
    assert max(map(len, tree)) == asked.draft_depth
