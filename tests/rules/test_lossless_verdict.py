"""Answers that part are named after what they are: a tie, noise, a defect, or acceptance that is relaxed."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from draftyard.nouns.losslessness import DivergenceKind, Losslessness
from draftyard.nouns.report_part import Verdict
from draftyard.nouns.timeline import Arm, Outcome, Timeline, TokenEvent
from draftyard.rules.lossless_prompts import TRAPS, lossless_prompts
from draftyard.rules.lossless_verdict import AnswerPass, judge_passes, lossless_verdict, with_sampled
from draftyard.rules.near_ties import FLOAT32_TIE
from draftyard.rules.two_samples import FALSE_ALARM, compare_samples, permutation_p_value

TEXT = tuple(range(40))


def answer(ids: Sequence[int]) -> Timeline:
    return Timeline(Outcome.SUCCESS, (TokenEvent(0.1, len(ids)),), 0.1, token_ids=tuple(ids))


def changed(index: int, token: int = 99) -> tuple[int, ...]:
    return (*TEXT[:index], token, *TEXT[index + 1 :])


def one_pass(where: str, arm: Arm, texts: Sequence[Sequence[int]]) -> AnswerPass:
    return AnswerPass(where, arm, {f"p{index}": answer(ids) for index, ids in enumerate(texts)})


def no_logits(prompt_id: str, shared: tuple[int, ...]) -> None:
    return None


def logits(gap: float):
    """The text's own next token on top, token 99 below it by the gap, everything else far below."""

    def of(prompt_id: str, shared: tuple[int, ...]) -> list[float]:
        row = [-50.0] * 100
        row[TEXT[len(shared)]] = 10.0
        row[99] = 10.0 - gap
        return row

    return of


def judged(speculative: Sequence[Sequence[Sequence[int]]], again: Sequence[Sequence[int]], logits_of=no_logits):
    prompts = len(again)
    passes = [
        one_pass("baseline, alone", Arm.BASELINE, [TEXT] * prompts),
        one_pass("baseline, 4 at once", Arm.BASELINE, again),
        *(one_pass(f"speculative {number}", Arm.SPECULATIVE, texts) for number, texts in enumerate(speculative, 1)),
    ]
    return judge_passes(passes, logits_of, FLOAT32_TIE)


def test_equal_answers_pass() -> None:
    found = judged([[TEXT] * 3] * 3, [TEXT] * 3)
    assert (found.compared, found.identical, found.floor_compared, found.floor_identical) == (9, 9, 3, 3)
    assert lossless_verdict(found) == (Verdict.PASS, "")


@pytest.mark.parametrize(
    ("gap", "kind", "verdict"),
    [(0.0005, DivergenceKind.TIE, Verdict.PASS), (3.1, DivergenceKind.DEFECT, Verdict.FAIL)],
)
def test_a_gap_tells_a_tie_from_a_defect(gap: float, kind: DivergenceKind, verdict: Verdict) -> None:
    found = judged([[changed(31), TEXT]], [TEXT] * 2, logits(gap))
    one = found.divergences[0]
    assert (one.index, one.kind) == (31, kind)
    assert one.top_two_gap == pytest.approx(gap)
    assert one.shortfall == pytest.approx(gap)
    assert lossless_verdict(found)[0] is verdict


def test_ties_are_capped() -> None:
    found = judged([[changed(31)] * 2 + [TEXT] * 8], [TEXT] * 10, logits(0.0))
    assert {one.kind for one in found.divergences} == {DivergenceKind.TIE}
    verdict, reason = lossless_verdict(found)
    assert verdict is Verdict.FAIL
    assert "2 prompts part by ties, 1 may" in reason


def test_without_logits_plain_decoding_tells_what_is_noise() -> None:
    noisy = judged([[changed(20), TEXT]], [changed(12), TEXT])
    assert noisy.floor_identical == 1
    assert noisy.divergences[0].kind is DivergenceKind.NOISE
    assert lossless_verdict(noisy)[0] is Verdict.PASS
    before = judged([[changed(5), TEXT]], [changed(12), TEXT])
    assert before.divergences[0].kind is DivergenceKind.UNEXPLAINED
    assert lossless_verdict(before)[0] is Verdict.FAIL


def test_likely_tokens_in_several_prompts_are_relaxed_acceptance() -> None:
    found = judged([[changed(7), changed(9), TEXT]], [TEXT] * 3, logits(1.2))
    assert found.relaxed
    assert {one.kind for one in found.divergences} == {DivergenceKind.RELAXED}
    verdict, reason = lossless_verdict(found)
    assert verdict is Verdict.FAIL
    assert "relaxed (lossy)" in reason
    assert not judged([[changed(7), TEXT]], [TEXT] * 2, logits(1.2)).relaxed, "one prompt is no pattern"


def test_state_between_requests_is_named() -> None:
    found = judged([[TEXT] * 2, [changed(5)] * 2, [changed(5)] * 2], [TEXT] * 2)
    assert "kept between requests" in lossless_verdict(found)[1]


def test_an_early_end_is_a_defect_and_a_failed_answer_no_evidence() -> None:
    found = judged([[TEXT[:9]]], [TEXT], logits(0.0))
    assert found.divergences[0].kind is DivergenceKind.DEFECT
    assert found.divergences[0].shortfall is None
    failed = AnswerPass("speculative", Arm.SPECULATIVE, {"p0": Timeline(Outcome.RESET, (), 0.0)})
    found = judge_passes([one_pass("baseline", Arm.BASELINE, [TEXT]), failed], no_logits, FLOAT32_TIE)
    assert lossless_verdict(found) == (Verdict.SKIPPED, "no answer could be compared")
    with pytest.raises(ValueError, match="no baseline"):
        judge_passes([failed], no_logits, FLOAT32_TIE)


def test_the_traps_hold_markup_code_and_copies() -> None:
    assert {"repetitive markup", "code", "copy"} <= {prompt.domain for prompt in TRAPS}
    markup = TRAPS[0].messages[0].content
    assert markup.count("<<a") == 3
    assert markup.count("<<b") == 1
    assert [prompt.id for prompt in lossless_prompts(TRAPS, 0)] == [prompt.id for prompt in TRAPS]


def test_two_samples_of_one_distribution_are_not_told_apart() -> None:
    random = np.random.default_rng(1)
    alarms = 0
    for seed in range(60):
        left, right = (random.integers(0, 6, 80).tolist() for _ in range(2))
        alarms += permutation_p_value(left, right, seed) < 0.05
    assert alarms <= 8, "the rate of false alarms at 0.05 is 0.05"


def test_two_samples_of_different_distributions_are() -> None:
    random = np.random.default_rng(2)
    left = [(int(value),) for value in random.integers(0, 6, 100)]
    right = [(int(value),) for value in random.choice(6, 100, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.1])]
    found = compare_samples("p", left, right, 3)
    assert found.p_value < FALSE_ALARM
    assert found.verdict is Verdict.FAIL
    whole = with_sampled(Losslessness(compared=1, identical=1, divergences=()), [found])
    assert lossless_verdict(whole)[0] is Verdict.FAIL
    assert compare_samples("p", left, left, 3).p_value == 1.0
    assert math.isclose(permutation_p_value([], [], 0), 1.0)
