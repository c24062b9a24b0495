"""Drafts as chains and trees, the greedy path, and single facts of speculative sampling."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.distributions import DRAFT, TARGET

from draftyard.engine.acceptance import (
    Draft,
    Verdict,
    draw_without_replacement,
    residual,
    speculative_sample,
    verify,
    without,
)
from draftyard.engine.sampling import distribution, draw
from draftyard.nouns.generation import GenerationRequest, SamplingParameters

ASK = GenerationRequest("r", (0,), 9)
#        root
#     0         1
#   2   3     4
#   5
TREE = Draft((1, 2, 3, 4, 3, 0), None, (-1, -1, 0, 0, 1, 2))


def rows(*tokens: int) -> torch.Tensor:
    """Logits whose arg max is given, one row for the root and one for each node."""
    return torch.eye(5)[list(tokens)]


def test_the_residual_is_normalised() -> None:
    wanted, proposed = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    assert residual(wanted, proposed, 1).tolist() == [1.0, 0.0, 0.0]
    assert torch.allclose(residual(wanted, None, 0), torch.tensor([0.0, 0.6, 0.4]))
    assert torch.equal(residual(wanted, wanted, 0), wanted)


def test_what_is_left_without_a_token_is_normalised_however_likely_it_was() -> None:
    left = without(torch.tensor([1 - 3e-8, 1e-8, 2e-8]), 0)
    assert left.tolist() == pytest.approx([0.0, 1 / 3, 2 / 3], rel=1e-6)
    assert without(torch.tensor([0.0, 1.0]), 1).tolist() == [0.0, 1.0]


def test_siblings_are_different_and_no_more_than_there_are() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        drawn = draw_without_replacement(torch.tensor([0.7, 0.0, 0.2, 0.1]), 9, generator)
        assert sorted(drawn) == [0, 2, 3]


def test_siblings_are_drawn_from_what_their_elders_left() -> None:
    """P(a, b) = q(a) q(b) / (1 - q(a))."""
    q, counts = torch.tensor([0.5, 0.3, 0.2]), torch.zeros(3, 3)
    generator = torch.Generator().manual_seed(3)
    for _ in range(4000):
        counts[draw_without_replacement(q, 2, generator)] += 1 / 4000
    expected = q[:, None] * q[None, :] / (1 - q[:, None])
    expected.fill_diagonal_(0)
    assert (counts - expected).abs().sum() / 2 < 0.03


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.tensor([0.25, 0.5, 0.25])
    for token in (0, 1, 2):
        verdict = speculative_sample(Draft((token,), (probabilities,)), lambda path: probabilities, generator)
        assert verdict.path == (0,)


def test_acceptance_happens_as_often_as_theory_says() -> None:
    """Leviathan et al., theorem 3.5: the probability is the sum of min(p, q)."""
    generator = torch.Generator().manual_seed(5)
    p, q = TARGET[()].softmax(-1), DRAFT[()].softmax(-1)
    accepted = sum(
        len(speculative_sample(Draft((draw(q, generator),), (q,)), lambda path: p, generator).path) for _ in range(8000)
    )
    assert abs(accepted / 8000 - float(torch.minimum(p, q).sum())) < 0.02


def test_all_siblings_together_hold_every_token() -> None:
    """Certain proposals of the whole vocabulary leave nothing to be refused."""
    generator = torch.Generator().manual_seed(2)
    draft = Draft((0, 1, 2, 3), None, (-1, -1, -1, -1))
    p = TARGET[()].softmax(-1)
    for _ in range(300):
        verdict = speculative_sample(draft, lambda path: p, generator)
        assert len(verdict.path) == 1


def test_greedy_keeps_the_leading_run_and_adds_the_targets_own() -> None:
    logits, generator = rows(1, 2, 3, 4), torch.Generator()
    assert verify(ASK, [0], Draft((1, 2, 3)), logits, generator) == Verdict((1, 2, 3, 4), (0, 1, 2))
    assert verify(ASK, [0], Draft((1, 0, 3)), logits, generator) == Verdict((1, 2), (0,))
    assert verify(ASK, [0], Draft((0, 2, 3)), logits, generator) == Verdict((1,))


def test_greedy_follows_the_branch_that_the_target_takes() -> None:
    generator = torch.Generator()
    # Rows: root, then nodes 0 to 5.
    assert verify(ASK, [0], TREE, rows(1, 3, 0, 0, 0, 0, 4), generator) == Verdict((1, 3, 0, 4), (0, 2, 5))
    assert verify(ASK, [0], TREE, rows(1, 4, 0, 0, 2, 0, 0), generator) == Verdict((1, 4, 2), (0, 3))
    assert verify(ASK, [0], TREE, rows(2, 0, 3, 0, 0, 1, 0), generator) == Verdict((2, 3, 1), (1, 4))
    assert verify(ASK, [0], TREE, rows(0, 3, 3, 0, 0, 0, 0), generator) == Verdict((0,))


def test_penalties_see_the_drafted_tokens_before_them() -> None:
    """Each row forbids what the accepted drafts made a repetition, as step by step decoding would."""
    logits = torch.tensor([[0.0, 2.0, 1.9], [0.0, 2.0, 1.9]])
    ask = GenerationRequest("r", (0,), 9, sampling=SamplingParameters(frequency_penalty=1.0))
    assert verify(ask, [0], Draft((1,)), logits, torch.Generator()) == Verdict((1, 2), (0,))


def test_penalties_do_not_see_the_siblings() -> None:
    """Token 2 was drafted beside token 1, not before it: it is no repetition there."""
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.9], [0.0, 0.0, 0.0]])
    ask = GenerationRequest("r", (0,), 9, sampling=SamplingParameters(frequency_penalty=1.0))
    assert verify(ask, [0], Draft((2, 1), None, (-1, -1)), logits[[0, 2, 1]], torch.Generator()).token_ids == (1, 2)


def test_sampled_acceptance_uses_the_filtered_distribution() -> None:
    """A token that top-k removed can never be accepted, however certain the draft was."""
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    sampling = SamplingParameters(top_k=2)
    assert distribution(logits[0], sampling)[2] == 0
    ask = GenerationRequest("r", (0,), 9, sampling=sampling)
    for seed in range(200):
        verdict = verify(ask, [0], Draft((2,)), logits, torch.Generator().manual_seed(seed))
        assert verdict.path == ()
        assert verdict.token_ids[0] in (0, 1)


def test_depths_and_children_of_a_tree_and_of_a_chain() -> None:
    assert TREE.depths() == (0, 0, 1, 1, 1, 2)
    assert TREE.children() == {-1: (0, 1), 0: (2, 3), 1: (4,), 2: (5,)}
    chain = Draft((7, 8, 9))
    assert (chain.depths(), chain.children()) == ((0, 1, 2), {-1: (0,), 0: (1,), 1: (2,)})
    assert (Draft().depths(), Draft().children()) == ((), {})


def test_trimming_takes_the_first_nodes_breadth_first() -> None:
    assert TREE.trimmed(6, 3) is TREE
    assert TREE.trimmed(4, 9) == Draft((1, 2, 3, 4), None, (-1, -1, 0, 0))
    assert TREE.trimmed(9, 1) == Draft((1, 2), None, (-1, -1))
    assert TREE.trimmed(0, 9) == TREE.trimmed(9, 0) == Draft((), None, ())
    chain = Draft((7, 8, 9), tuple(torch.eye(3)))
    assert chain.trimmed(2, 9).token_ids == chain.trimmed(9, 2).token_ids == (7, 8)
    assert len(chain.trimmed(2, 9).probabilities) == 2
    depth_first = Draft((1, 2, 3, 4), None, (-1, 0, 1, -1))
    assert depth_first.trimmed(3, 9) == Draft((1, 2, 4), None, (-1, 0, -1))


@st.composite
def trees(draw_: st.DrawFn) -> Draft:
    """Any tree: each node behind an earlier one or the root."""
    count = draw_(st.integers(0, 12))
    parents = tuple(draw_(st.integers(-1, node - 1)) for node in range(count))
    return Draft(tuple(range(100, 100 + count)), None, parents)


@given(trees(), st.integers(0, 14), st.integers(0, 14))
def test_a_trimmed_tree_is_a_part_of_the_tree(tree: Draft, nodes: int, depth: int) -> None:
    cut = tree.trimmed(nodes, depth)
    named = dict(zip(tree.token_ids, zip(tree.depths(), tree.parents, strict=True), strict=True))
    assert list(cut.token_ids) == sorted(cut.token_ids), "siblings keep their order"
    for token, parent in zip(cut.token_ids, cut.parents, strict=True):
        original = named[token][1]
        assert (parent == -1) == (original == -1)
        assert parent == -1 or cut.token_ids[parent] == tree.token_ids[original]
    fitting = [at for at, _ in named.values() if at < depth]
    assert sorted(cut.depths()) == sorted(fitting)[:nodes]
