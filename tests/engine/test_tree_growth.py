"""Trees grown level by level: against trees drawn node by node, and what every tree must keep to."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftyard.engine.tree_growth import (
    Branches,
    Candidates,
    DynamicPlan,
    StaticPlan,
    TreePlan,
    chain_plan,
    choose,
    grow,
    likeliest,
)

VOCABULARY = 11
STATE = 3


class Oracle:
    """A drafter whose state is a number of its path: logits of a node depend on the whole path to it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.fed = 0
        self.levels: list[int] = []

    def roots(self, count: int) -> Tensor:
        return torch.arange(count * STATE, dtype=torch.float64).view(count, STATE) * 0.37 + self.seed

    def logits(self, states: Tensor) -> Tensor:
        rows = torch.arange(1, VOCABULARY + 1, dtype=torch.float64)
        return 3 * torch.sin(states.sum(1, keepdim=True) * 12.9898 + rows * 4.1)

    def step(self, states: Tensor, token_ids: Tensor) -> Tensor:
        return torch.sin(states * 1.7 + token_ids.unsqueeze(-1) * 0.9 + torch.arange(STATE))

    def feed(self, branches: Branches) -> Tensor:
        self.levels.append(branches.token_ids.shape[1])
        assert branches.depth == len(self.levels) - 1
        nodes, rows = branches.sees.shape[1:]
        assert rows == sum(self.levels)
        assert bool(branches.sees[:, :, rows - nodes :].eq(torch.eye(nodes, dtype=torch.bool)).all())
        assert branches.sees.sum(2).unique().tolist() == [branches.depth + 1], "ancestors and itself"
        return self.step(branches.states, branches.token_ids)


def grown(plan: TreePlan, seed: int, count: int = 2, levels: int = 99) -> tuple[Candidates, Oracle]:
    oracle = Oracle(seed)
    return grow(
        plan, levels, oracle.roots(count), oracle.logits, oracle.feed, lambda rows: rows + 100, likeliest
    ), oracle


def paths(token_ids: Tensor, parents: Tensor, scores: Tensor) -> dict[tuple[int, ...], float]:
    """Token paths from the root with their scores."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(token_ids.tolist(), parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token - 100))
    assert len(set(found)) == len(found)
    return dict(zip(found, scores.tolist(), strict=True))


def drawn(oracle: Oracle, root: Tensor, top_k: int, continued: int, depth: int) -> dict[tuple[int, ...], float]:
    """EAGLE-2 with a dictionary."""
    nodes: dict[tuple[int, ...], float] = {}
    front = {(): (0.0, root)}
    for _ in range(depth):
        level = {}
        for path, (score, state) in front.items():
            logs = oracle.logits(state[None])[0].log_softmax(-1)
            for token in logs.topk(top_k).indices.tolist():
                after = oracle.step(state[None], torch.tensor([token + 100]))[0]
                level[(*path, token)] = (score + float(logs[token]), after)
        nodes |= {path: score for path, (score, _) in level.items()}
        front = dict(sorted(level.items(), key=lambda item: -item[1][0])[:continued])
    return nodes


dynamic = st.tuples(st.integers(1, VOCABULARY), st.integers(1, 6), st.integers(1, 4))


@settings(max_examples=40, deadline=None)
@given(dynamic, st.integers(0, 1000))
def test_dynamic_trees_are_those_drawn_node_by_node(sizes: tuple[int, int, int], seed: int) -> None:
    top_k, non_leaves, depth = sizes
    candidates, oracle = grown(DynamicPlan(top_k, non_leaves, depth), seed)
    for row, root in enumerate(oracle.roots(2)):
        expected = drawn(oracle, root, top_k, min(top_k, non_leaves), depth)
        got = paths(candidates.token_ids[row], candidates.parents[row], candidates.scores[row])
        assert got.keys() == expected.keys()
        assert all(abs(got[path] - expected[path]) < 1e-9 for path in got)
    assert all(level <= min(top_k, non_leaves) for level in oracle.levels)
    assert sum(oracle.levels) == DynamicPlan(top_k, non_leaves, depth).fed_rows


@settings(max_examples=60, deadline=None)
@given(dynamic, st.integers(0, 1000), st.integers(1, 40), st.integers(0, 5))
def test_chosen_trees_keep_parents_bounds_and_the_best(
    sizes: tuple[int, int, int], seed: int, most: int, deepest: int
) -> None:
    top_k, non_leaves, depth = sizes
    candidates, _ = grown(DynamicPlan(top_k, non_leaves, depth), seed)
    for row, tree in enumerate(choose(candidates, [most, most], [deepest, deepest])):
        reachable = candidates.scores[row][candidates.depths < deepest]
        assert len(tree.token_ids) == len(tree.parents) == min(most, len(reachable))
        assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))
        level = [0] * len(tree.parents)
        for node, parent in enumerate(tree.parents):
            level[node] = 0 if parent < 0 else level[parent] + 1
            assert parent < 0 or tree.scores[node] <= tree.scores[parent]
        assert max(level, default=-1) < min(depth, deepest) or not level
        for parent in range(-1, len(tree.parents)):
            scores = [tree.scores[node] for node, above in enumerate(tree.parents) if above == parent]
            assert scores == sorted(scores, reverse=True)
            assert len(scores) <= top_k
        for at in range(depth):
            inner = {parent for parent in tree.parents if parent >= 0 and level[parent] == at}
            assert len(inner) <= non_leaves
        if tree.scores and len(tree.scores) < len(reachable):
            left = sorted(reachable.tolist(), reverse=True)[len(tree.scores) :]
            assert min(tree.scores) >= max(left)


def test_equal_confidence_keeps_the_parent_first() -> None:
    """Certain children are as likely as their parents; whichever are cut, no child may stay without its parent."""
    scores = torch.tensor([[-1.0, 0.0, 0.0, 0.0, -1.0]])
    parents = torch.tensor([[-1, -1, 1, 2, 3]])
    candidates = Candidates(torch.arange(5)[None], scores, parents, torch.tensor([0, 0, 1, 2, 3]))
    for most in range(1, 6):
        (tree,) = choose(candidates, [most], [9])
        assert all(parent < node for node, parent in enumerate(tree.parents))
        assert tree.parents == {1: (-1,), 2: (-1, 0), 3: (-1, 0, 1)}.get(most, tree.parents)


choice_sets = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(choice_sets, st.integers(0, 1000))
def test_static_trees_hold_exactly_their_choices(leaves: list[list[int]], seed: int) -> None:
    choices = {tuple(path[:end]) for path in leaves for end in range(1, len(path) + 1)}
    plan = StaticPlan(sorted(choices))
    candidates, oracle = grown(plan, seed)
    for row, root in enumerate(oracle.roots(2)):
        expected = {(): ((), 0.0, root)}
        for choice in sorted(choices, key=len):
            path, score, state = expected[choice[:-1]]
            logs = oracle.logits(state[None])[0].log_softmax(-1)
            token = int(logs.topk(choice[-1] + 1).indices[-1])
            after = oracle.step(state[None], torch.tensor([token + 100]))[0]
            expected[choice] = ((*path, token), score + float(logs[token]), after)
        got = paths(candidates.token_ids[row], candidates.parents[row], candidates.scores[row])
        wanted = {path: score for path, score, _ in expected.values() if path}
        assert got.keys() == wanted.keys()
        assert all(abs(got[path] - wanted[path]) < 1e-9 for path in got)
    assert sum(oracle.levels) == plan.fed_rows == len({path[:-1] for path in choices} - {()})
    assert plan.depth == max(map(len, choices))


def test_a_chain_is_the_likeliest_token_of_each_level_and_stops_with_its_levels() -> None:
    for levels, length in ((99, 5), (3, 3), (1, 1)):
        candidates, oracle = grown(chain_plan(5), 3, levels=levels)
        assert candidates.parents.tolist() == [list(range(-1, length - 1))] * 2
        assert oracle.levels == [1] * (length - 1)
        state = oracle.roots(2)
        for depth in range(length):
            likeliest = oracle.logits(state).argmax(-1)
            assert candidates.token_ids[:, depth].tolist() == (likeliest + 100).tolist()
            state = oracle.step(state, likeliest + 100)
