"""What speculation did to the output: answers compared, where they part, and why."""

from draftyard.nouns.enums import StrEnum
from draftyard.nouns.report_part import Part, Verdict


class DivergenceKind(StrEnum):
    """Why two greedy answers part, as far as that can be known.

    `tie`: both tokens lie within the stated bound of the likeliest. `noise`: plain decoding parts from itself there,
    too. `relaxed`: the token is likely, and not the likeliest. `defect`: it is neither. `unexplained`: without logits.
    """

    TIE = "tie"
    NOISE = "noise"
    RELAXED = "relaxed"
    DEFECT = "defect"
    UNEXPLAINED = "unexplained"


class Divergence(Part):
    """A prompt whose tokens differ between the arms: where, and at which output token (from 0).

    `top_two_gap` is the distance of the two largest logits there, `shortfall` how far the chosen tokens lie below the
    largest, where logits are to be had.
    """

    prompt_id: str
    where: str
    index: int
    baseline: tuple[int, ...]
    speculative: tuple[int, ...]
    kind: DivergenceKind = DivergenceKind.UNEXPLAINED
    top_two_gap: float | None = None
    shortfall: float | None = None


class SampledTest(Part):
    """Drawn continuations of one prompt with and without speculation: could both come from one distribution?

    `p_value` is that of a permutation test of the chi-square statistic; below `bound` they do not.
    """

    prompt_id: str
    draws: int
    tokens: int
    p_value: float
    bound: float
    verdict: Verdict


class Losslessness(Part):
    """Greedy answers with speculation against those without.

    `floor_compared` and `floor_identical` are plain decoding against itself, asked again in other order and company.
    At most `tolerated_prompts` prompts may part by ties or noise alone. `relaxed` tells that the speculator seems to
    accept likely tokens in place of the likeliest.
    """

    compared: int
    identical: int
    divergences: tuple[Divergence, ...]
    floor_compared: int = 0
    floor_identical: int = 0
    tolerated_prompts: int = 0
    relaxed: bool = False
    sampled: tuple[SampledTest, ...] = ()
    notes: tuple[str, ...] = ()
