"""How a recipe wants its repositories measured, and what must hold for them to pass."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from draftyard.nouns.load import Arrival, CacheUse
from draftyard.nouns.recipe_section import Count, Section, Whole

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class Gates(Section):
    """What must hold for a verification to pass; unset gates are reported, not enforced."""

    lossless: bool = Field(True, description="Greedy output with speculation must equal output without.")
    min_speedup: Positive | None = Field(None, description="Least output rate ratio at `min_speedup_at`.")
    min_speedup_at: Count = Field(1, description="Concurrency at which `min_speedup` must be reached.")
    max_ttft_regression: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description="Most that TTFT (p95, or the median of few) may grow with speculation: 0.1 is 10 %.",
    )
    min_acceptance_length: Mapping[str, Positive] = Field(
        default_factory=dict, description="Least acceptance length by domain; `all` is every prompt together."
    )
    policy: bool = Field(
        False, description="The deployed policy must nowhere be slower than the better of the other two arms."
    )
    policy_tolerance: Share = Field(0.05, description="How much slower the policy may be, as a share.")
    max_error_rate: Share = Field(0.0, description="Most failed requests, as a share.")


class Verify(Section):
    """How a served repository is measured."""

    concurrency: tuple[Count, ...] = Field((1, 2, 4, 8), description="Concurrent requests of each tier.")
    request_rate: tuple[Positive, ...] = Field(
        (), description="Requests per second of each open-loop tier; none are measured without."
    )
    arrival_pattern: Arrival = Field(Arrival.POISSON, description="Gaps between requests of an open loop.")
    requests_per_tier: Count = Field(
        8, description="Requests of one arm at one tier; more where four turns of the concurrency need them."
    )
    max_tokens: Count = Field(64, description="Output tokens of a request at most.")
    prompts: str = Field(description="Prompt pack: a directory or JSONL file; relative to the recipe file.")
    prefix_cache: CacheUse = Field(
        CacheUse.BUSTED,
        description="busted: each request begins with an id of its own; kept: each prompt is asked once before.",
    )
    request_timeout_s: Positive = Field(180.0, description="A request without an end by then has failed.")
    retries: Whole = Field(0, description="Tries after a refusal; what needed one is counted apart, never measured.")
    random_seed: Whole = Field(0, description="Decides arrival times and the ids that prompts begin with.")
    gates: Gates = Gates()

    @model_validator(mode="after")
    def _rising(self) -> "Verify":
        if not self.concurrency or list(self.concurrency) != sorted(set(self.concurrency)):
            raise ValueError("concurrency must list rising numbers, such as 1, 2, 4, 8")
        if list(self.request_rate) != sorted(set(self.request_rate)):
            raise ValueError("request_rate must list rising numbers, such as 0.5, 1, 2")
        if self.arrival_pattern is Arrival.CLOSED:
            raise ValueError("arrival_pattern is poisson or constant")
        return self
