"""Speculative sampling keeps the target's distribution; planted mistakes are seen by the same measure."""

import itertools
from collections.abc import Callable

import pytest
import torch

from draftyard.engine.acceptance import Draft, Verdict, residual, speculative_sample, verify
from draftyard.engine.sampling import distribution, draw, uniform
from draftyard.nouns.generation import GenerationRequest, SamplingParameters

VOCABULARY, LENGTH, RUNS = 4, 3, 12_000
# Exact chi-square tables would need one more package: the 99.99 % point for 63 degrees of freedom is 114.8, and a
# right implementation gives about 63 with a standard deviation of 11.2.
LIMIT = 114.8

Target = Callable[[tuple[int, ...]], torch.Tensor]
Sampler = Callable[[Draft, Target, torch.Generator], Verdict]


def table(seed: int) -> dict[tuple[int, ...], torch.Tensor]:
    """A next-token distribution for every context of fewer than `LENGTH` tokens."""
    generator = torch.Generator().manual_seed(seed)
    contexts = [context for length in range(LENGTH) for context in itertools.product(range(VOCABULARY), repeat=length)]
    return {context: torch.softmax(torch.randn(VOCABULARY, generator=generator) * 1.2, -1) for context in contexts}


TARGET, DRAFT = table(1), table(2)


def generate(sampler: Sampler, generator: torch.Generator, certain: bool) -> tuple[int, ...]:
    """`LENGTH` tokens, drafted two at a time from DRAFT, or from a fixed guess where the proposal is certain."""
    tokens: tuple[int, ...] = ()
    while len(tokens) < LENGTH:
        room = min(2, LENGTH - len(tokens) - 1)
        drafted: list[int] = []
        drawn_from = []
        for _ in range(room):
            proposal = DRAFT[(*tokens, *drafted)]
            drafted.append(sum(tokens) % VOCABULARY if certain else draw(proposal, generator))
            drawn_from.append(proposal)
        draft = Draft(tuple(drafted), None if certain or not room else tuple(drawn_from))

        def target(
            path: tuple[int, ...], tokens: tuple[int, ...] = tokens, drafted: list[int] = drafted
        ) -> torch.Tensor:
            return TARGET[(*tokens, *(drafted[node] for node in path))]

        tokens += sampler(draft, target, generator).token_ids
    return tokens


def chi_square(sampler: Sampler, certain: bool) -> float:
    """Pearson's statistic of the generated triples against the target's own probabilities of them."""
    generator = torch.Generator().manual_seed(11)
    counts = dict.fromkeys(itertools.product(range(VOCABULARY), repeat=LENGTH), 0)
    for _ in range(RUNS):
        counts[generate(sampler, generator, certain)] += 1
    total = 0.0
    for triple, count in counts.items():
        probability = 1.0
        for place, token in enumerate(triple):
            probability *= float(TARGET[triple[:place]][token])
        total += (count - RUNS * probability) ** 2 / (RUNS * probability)
    return total


@pytest.mark.parametrize("certain", [False, True])
def test_speculative_sampling_has_the_distribution_of_the_target(certain: bool) -> None:
    assert chi_square(speculative_sample, certain) < LIMIT


def accepts_everything(draft: Draft, target: Target, generator: torch.Generator) -> Verdict:
    count = len(draft.token_ids)
    return Verdict((*draft.token_ids, draw(target(tuple(range(count))), generator)), tuple(range(count)))


def resamples_from_the_target(draft: Draft, target: Target, generator: torch.Generator) -> Verdict:
    """The mistake of drawing the replacement from p and not from what p has more than q."""
    for index, token in enumerate(draft.token_ids):
        proposed = 1.0 if draft.probabilities is None else float(draft.probabilities[index][token])
        if uniform(generator) * proposed >= float(target(tuple(range(index)))[token]):
            return Verdict(
                (*draft.token_ids[:index], draw(target(tuple(range(index))), generator)), tuple(range(index))
            )
    return accepts_everything(draft, target, generator)


def accepts_with_the_target_alone(draft: Draft, target: Target, generator: torch.Generator) -> Verdict:
    """The mistake of accepting with p in place of p / q."""
    for index, token in enumerate(draft.token_ids):
        if uniform(generator) >= float(target(tuple(range(index)))[token]):
            drawn_from = None if draft.probabilities is None else draft.probabilities[index]
            rest = residual(target(tuple(range(index))), drawn_from, token)
            return Verdict((*draft.token_ids[:index], draw(rest, generator)), tuple(range(index)))
    return accepts_everything(draft, target, generator)


@pytest.mark.parametrize("mistake", [accepts_everything, resamples_from_the_target, accepts_with_the_target_alone])
def test_mistakes_are_seen(mistake: Sampler) -> None:
    assert chi_square(mistake, certain=False) > LIMIT


def test_the_residual_is_normalised() -> None:
    wanted, proposed = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    assert residual(wanted, proposed, 1).tolist() == [1.0, 0.0, 0.0]
    assert torch.allclose(residual(wanted, None, 0), torch.tensor([0.0, 0.6, 0.4]))
    assert torch.equal(residual(wanted, wanted, 0), wanted)


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.tensor([0.25, 0.5, 0.25])
    for token in (0, 1, 2):
        verdict = speculative_sample(Draft((token,), (probabilities,)), lambda path: probabilities, generator)
        assert verdict.path == (0,)


def test_acceptance_happens_as_often_as_theory_says() -> None:
    """Leviathan et al., theorem 3.5: the probability is the sum of min(p, q)."""
    generator = torch.Generator().manual_seed(5)
    p, q = TARGET[()], DRAFT[()]
    accepted = sum(
        speculative_sample(Draft((draw(q, generator),), (q,)), lambda path: p, generator).path == (0,)
        for _ in range(8000)
    )
    assert abs(accepted / 8000 - float(torch.minimum(p, q).sum())) < 0.02


def test_greedy_keeps_the_leading_run_and_adds_the_targets_own() -> None:
    logits = torch.eye(5)[[1, 2, 3, 4]]
    ask = GenerationRequest("r", (0,), 9)
    generator = torch.Generator()
    assert verify(ask, [0], Draft((1, 2, 3)), logits, generator) == Verdict((1, 2, 3, 4), (0, 1, 2))
    assert verify(ask, [0], Draft((1, 0, 3)), logits, generator) == Verdict((1, 2), (0,))
    assert verify(ask, [0], Draft((0, 2, 3)), logits, generator) == Verdict((1,))


def test_penalties_see_the_drafted_tokens_before_them() -> None:
    """Each row forbids what the accepted drafts made a repetition, as step by step decoding would."""
    logits = torch.tensor([[0.0, 2.0, 1.9], [0.0, 2.0, 1.9]])
    ask = GenerationRequest("r", (0,), 9, sampling=SamplingParameters(frequency_penalty=1.0))
    assert verify(ask, [0], Draft((1,)), logits, torch.Generator()) == Verdict((1, 2), (0,))


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
