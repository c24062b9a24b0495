"""Sampling: the distribution a request asks for, penalties, forbidden tokens."""

import pytest
import torch

from draftyard.engine.sampling import adjusted, distribution, draw
from draftyard.nouns.generation import GenerationRequest, SamplingParameters

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def request(prompt: tuple[int, ...] = (0,), **fields: object) -> GenerationRequest:
    return GenerationRequest("r", prompt, 8, **fields)


def test_temperature_divides_the_logits() -> None:
    got = distribution(LOGITS, SamplingParameters(temperature=0.5, top_k=0))
    assert torch.allclose(got, torch.softmax(LOGITS * 2, -1), atol=1e-6)


def test_top_k_keeps_the_likeliest() -> None:
    got = distribution(LOGITS, SamplingParameters(top_k=2))
    assert torch.allclose(got[:2], torch.softmax(LOGITS[:2], -1), atol=1e-6)
    assert got[2:].sum() == 0


def test_top_p_keeps_the_fewest_that_reach_the_mass() -> None:
    plain = torch.softmax(LOGITS, -1)
    two = float(plain[:2].sum())
    assert (distribution(LOGITS, SamplingParameters(top_k=0, top_p=two - 1e-3)) > 0).sum() == 2
    assert (distribution(LOGITS, SamplingParameters(top_k=0, top_p=two + 1e-3)) > 0).sum() == 3
    assert (distribution(LOGITS, SamplingParameters(top_k=0, top_p=1e-6)) > 0).sum() == 1


def test_temperature_comes_before_top_p_and_top_k_before_both_renormalise() -> None:
    hot = distribution(LOGITS, SamplingParameters(temperature=10.0, top_k=4, top_p=0.5))
    expected = torch.softmax(LOGITS[:4] / 10, -1)
    kept = int((torch.cumsum(expected, -1) - expected < 0.5).sum())
    assert torch.allclose(hot[:kept], expected[:kept] / expected[:kept].sum(), atol=1e-6)
    assert hot[kept:].sum() == 0


def test_repetition_penalty_counts_prompt_and_output_and_knows_signs() -> None:
    got = adjusted(LOGITS, request((0, 5), sampling=SamplingParameters(repetition_penalty=2.0)), [0, 5, 1])
    assert got.tolist() == [1.0, 0.5, 0.5, 0.0, -1.0, -6.0]


def test_frequency_counts_occurrences_and_presence_does_not() -> None:
    sampling = SamplingParameters(frequency_penalty=0.5, presence_penalty=0.25)
    got = adjusted(LOGITS, request((3,), sampling=sampling), [3, 1, 1, 2])
    assert got.tolist() == [2.0, 1.0 - 1.25, 0.5 - 0.75, 0.0, -1.0, -3.0]


def test_end_ids_are_forbidden_before_min_tokens() -> None:
    asked = request(sampling=SamplingParameters(min_tokens=2), end_ids=(0,), stop_sequences=((2,), (3, 4)))
    assert adjusted(LOGITS, asked, [0, 1])[[0, 2]].tolist() == [float("-inf")] * 2
    assert adjusted(LOGITS, asked, [0, 1])[[3, 4]].tolist() == [0.0, -1.0]
    assert adjusted(LOGITS, asked, [0, 1, 1]).tolist() == LOGITS.tolist()


@pytest.mark.parametrize(
    ("bad", "history", "banned"),
    [(((4,),), [0], 4), (((1, 2, 3),), [0, 1, 2], 3), (((1, 2, 3),), [0, 2, 1], None), (((0, 0),), [0], 0)],
)
def test_bad_sequences_are_not_completed(
    bad: tuple[tuple[int, ...], ...], history: list[int], banned: int | None
) -> None:
    got = adjusted(LOGITS, request(bad_sequences=bad), history)
    assert [index for index, value in enumerate(got.tolist()) if value == float("-inf")] == (
        [] if banned is None else [banned]
    )


def test_the_logits_of_the_model_are_left_alone() -> None:
    before = LOGITS.clone()
    adjusted(LOGITS, request(sampling=SamplingParameters(repetition_penalty=2.0), bad_sequences=((1,),)), [0])
    assert torch.equal(LOGITS, before)


def test_draws_follow_the_probabilities_and_never_hit_a_zero() -> None:
    probabilities = torch.tensor([0.0, 0.1, 0.0, 0.6, 0.3, 0.0])
    generator = torch.Generator().manual_seed(1)
    counts = torch.zeros(6)
    for _ in range(6000):
        counts[draw(probabilities, generator)] += 1
    assert counts[[0, 2, 5]].sum() == 0
    assert (counts / 6000 - probabilities).abs().sum() / 2 < 0.03
