"""Whether two samples of short texts can come from one distribution: a permutation test of the chi-square statistic."""

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from draftyard.nouns.losslessness import SampledTest
from draftyard.nouns.report_part import Verdict

PERMUTATIONS = 4999
# Each prompt is one test: so small that a false alarm in a whole report stays rare.
FALSE_ALARM = 0.001


def permutation_p_value(left: Sequence[Hashable], right: Sequence[Hashable], seed: int) -> float:
    """Share of relabelled samples that differ at least as much (Fisher 1935), observed one counted; 1 without values.

    The statistic is chi-square over all values that occur. No assumption about how many of each there must be.
    """
    if not left or not right:
        return 1.0
    names = {name: index for index, name in enumerate(dict.fromkeys([*left, *right]))}
    values = np.array([names[name] for name in (*left, *right)])
    random = np.random.default_rng(seed)
    observed = _statistic(np.bincount(values[: len(left)], minlength=len(names)), values, len(left))
    worse = 0
    for _ in range(PERMUTATIONS):
        chosen = random.permutation(values)[: len(left)]
        # Sums in another order must not turn an equal statistic into a smaller one.
        worse += _statistic(np.bincount(chosen, minlength=len(names)), values, len(left)) >= observed * (1 - 1e-9)
    return (worse + 1) / (PERMUTATIONS + 1)


def _statistic(counts: "npt.NDArray[np.int64]", values: "npt.NDArray[np.int64]", size: int) -> float:
    totals = np.bincount(values, minlength=len(counts))
    expected = totals * (size / len(values))
    return float(((counts - expected) ** 2 / expected).sum())


def compare_samples(
    prompt_id: str, left: Sequence[tuple[int, ...]], right: Sequence[tuple[int, ...]], seed: int
) -> SampledTest:
    """Drawn continuations, as token ids, without and with speculation."""
    value = permutation_p_value(left, right, seed)
    return SampledTest(
        prompt_id=prompt_id,
        draws=min(len(left), len(right)),
        tokens=max((len(one) for one in (*left, *right)), default=0),
        p_value=value,
        bound=FALSE_ALARM,
        verdict=Verdict.FAIL if value < FALSE_ALARM else Verdict.PASS,
    )
