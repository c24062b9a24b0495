"""How near one set of weights stays to another: what FP8 costs."""

from dataclasses import dataclass

from draftyard.nouns.digest import Json


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Two networks on the same texts, position by position. Divergences are KL(first || second) in nats.

    `agreeing` counts positions whose likeliest next token is the same.
    """

    texts: int
    tokens: int
    agreeing: int
    mean_divergence: float
    worst_percentile_divergence: float

    @property
    def agreement(self) -> float:
        """Share of positions whose likeliest next token is the same."""
        return self.agreeing / self.tokens

    def as_json(self) -> dict[str, Json]:
        """The value that `--format json` prints."""
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "greedy_agreement": self.agreement,
            "mean_kl_nats": self.mean_divergence,
            "p99_kl_nats": self.worst_percentile_divergence,
        }
