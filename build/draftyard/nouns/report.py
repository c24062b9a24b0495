"""What a verification found: checks, measurements, verdicts, and the digest of the raw file behind each number."""

from pydantic import Field, JsonValue

from draftyard.nouns.enums import StrEnum
from draftyard.nouns.load import Arrival, Profile
from draftyard.nouns.losslessness import Losslessness
from draftyard.nouns.policy import Policy
from draftyard.nouns.report_part import Interval, Part, Verdict
from draftyard.nouns.verification import Verify

REPORT_SCHEMA = 1


class Advice(StrEnum):
    """What to do at one load or in one domain."""

    SPECULATE = "speculate"
    NEUTRAL = "neutral"
    DO_NOT_SPECULATE = "do not speculate"


class LoadAxis(StrEnum):
    """What load is counted in: requests in flight (closed loop), or requests a second (open loop)."""

    CONCURRENCY = "concurrency"
    REQUEST_RATE = "request_rate"


class Summary(Part):
    """A distribution over n values; percentiles are None where n is too small, `reason` says which and why."""

    n: int
    left_out: int
    mean: float
    std: float
    min: float
    max: float
    p50: float
    p95: float | None
    p99: float | None
    reason: str


class Acceptance(Part):
    """How drafts fared, pooled over requests. `steps` are the decode steps seen; lengths count the bonus token.

    `per_position[i]` is the share of steps that accepted position i+1 among those that accepted all before it;
    its denominator counts every such step, also one that drafted fewer tokens (an upper bound).
    """

    requests: int
    steps: int
    drafted: int | None
    accepted: int | None
    mean_accepted_per_step: float | None
    acceptance_length: float | None
    acceptance_rate: float | None
    per_position: tuple[float | None, ...]
    histogram: tuple[int, ...]
    per_request_length: Summary | None
    inconsistent_requests: int


class Check(Part):
    """One smoke check: what was expected, what was measured, and what shows it."""

    name: str
    verdict: Verdict
    expected: str
    measured: str
    evidence: str = ""
    seconds: float = 0.0


class ArmResult(Part):
    """One arm at one tier; times in milliseconds, over successful requests only."""

    requests: int
    succeeded: int
    failures: dict[str, int]
    output_tokens: int
    wall_s: float
    output_tokens_per_s: float | None
    output_tokens_per_s_per_user: float | None
    peak_tokens_per_s: float | None
    ttft_ms: Summary | None
    time_to_first_text_ms: Summary | None
    tpot_ms: Summary | None
    tpot_token_weighted_ms: float | None
    tpot_industry_ms: Summary | None
    inter_chunk_latency_ms: Summary | None
    merged_events: int
    tokens_per_chunk: float | None
    e2e_ms: Summary | None
    count_mismatch_share: float
    e2e_from_schedule_ms: Summary | None = None


class Worth(Part):
    """Why speculation pays or not at one load, from what was measured there.

    `break_even_length` is the acceptance length at which a step that costs so much pays for itself, `break_even_rate`
    the share of accepted drafts that gives it. `ttft_tax` is the p95 of TTFT with speculation over without (the median
    where n is too small, see `ttft_quantile`). `prefill_share` is TTFT over E2E of the baseline.
    `speedup_at_10_to_1` is reckoned for ten input tokens to each output token.
    """

    break_even_length: float | None
    break_even_rate: float | None
    prefill_share: float | None
    ttft_tax: float | None
    ttft_tax_interval: Interval | None
    ttft_quantile: str
    speedup_at_10_to_1: float | None
    kv_cache_share: float | None
    causes: tuple[str, ...]


class DomainResult(Part):
    """One domain at one tier or over all; each pair is one prompt in both arms at the same load."""

    domain: str
    pairs: int
    speedup: float | None
    speedup_interval: Interval | None
    acceptance: Acceptance
    advice: Advice
    reason: str
    evidence: tuple[str, ...]


class TierResult(Part):
    """All arms at one load and what follows; `evidence` is the SHA-256 of the tier's raw records.

    A load that was measured again has the digests of those records in `more_evidence`.

    A tier of an open loop has `request_rate` above 0 and concurrency 0. `policy` is there when that arm was measured.
    """

    concurrency: int
    baseline: ArmResult
    speculative: ArmResult
    pairs: int
    speedup: float | None
    speedup_interval: Interval | None
    wall_speedup: float | None
    tpot_ratio: float | None
    tpot_ratio_interval: Interval | None
    acceptance: Acceptance
    step_cost: float | None
    advice: Advice
    reason: str
    evidence: str
    measured_at: str
    reused: bool
    turns: int = 0
    request_rate: float = 0.0
    arrival: Arrival = Arrival.CLOSED
    achieved_rate_share: float | None = None
    worth: Worth | None = None
    policy: ArmResult | None = None
    policy_over_baseline: float | None = None
    policy_over_baseline_interval: Interval | None = None
    policy_over_speculative: float | None = None
    policy_over_speculative_interval: Interval | None = None
    recovered: int = 0
    more_evidence: tuple[str, ...] = ()
    domains: tuple[DomainResult, ...] = ()


class Crossover(Part):
    """The load above which speculation stops paying; None when that was not seen, and `text` says so."""

    concurrency: float | None
    interval: Interval | None
    share_of_resamples: float | None
    text: str


class LoadCrossing(Part):
    """Where the speed-up falls through 1 along one axis, for one domain or `all`.

    `at` is None when that lies outside the measured range. The interval is cut to the range; an open end says that the
    crossing may lie beyond it. `share_of_draws`: resampled curves that cross within the range.
    """

    axis: LoadAxis
    domain: str
    at: float | None
    interval: Interval | None
    open_below: bool
    open_above: bool
    share_of_draws: float
    text: str


class CostLaw(Part):
    """Cost of a step in plain steps, 1 + k r + o, from two draft lengths k measured at one load.

    `per_drafted_token` is r, `overhead` o; `best_length` is the k at which a step yields most for its cost, with the
    acceptance by position that was measured.
    """

    concurrency: int
    lengths: tuple[int, int]
    costs: tuple[float, float]
    per_drafted_token: float
    overhead: float
    best_length: int
    evidence: str


class PolicyProof(Part):
    """The policy arm against the better of the other two, tier by tier; loads as text.

    `failing` tiers are established as slower than the tolerance allows, at `open` ones the interval holds that bound.
    """

    tiers: int
    failing: tuple[str, ...]
    open: tuple[str, ...]
    worst_ratio: float | None
    tolerance: float
    verdict: Verdict


class PolicyResult(Part):
    """The policy that follows from the tiers, and what measuring it gave.

    `source` is `repository` when that carries it, `server` when the running server was given it, `client` when the load
    client chose draft lengths in its place.
    """

    policy: Policy
    words: str
    source: str
    path: str
    proof: PolicyProof | None


class EvidenceFile(Part):
    """One raw file beside the report."""

    path: str
    sha256: str
    size_bytes: int
    records: int


class GateResult(Part):
    """One gate of the recipe for one variant."""

    variant: str
    gate: str
    required: str
    measured: str
    verdict: Verdict
    reason: str = ""


class VariantResult(Part):
    """Everything found for one served repository."""

    name: str
    speculator: str
    repository_key: str
    server: str
    headline: str
    checks: tuple[Check, ...]
    losslessness: Losslessness
    tiers: tuple[TierResult, ...]
    domains: tuple[DomainResult, ...]
    acceptance: Acceptance | None
    crossover: Crossover | None
    client_cpu_cores: float | None
    warnings: tuple[str, ...]
    evidence: tuple[EvidenceFile, ...]
    crossings: tuple[LoadCrossing, ...] = ()
    policy: PolicyResult | None = None
    rate_tiers: tuple[TierResult, ...] = ()
    proof_tiers: tuple[TierResult, ...] = ()
    alarms: tuple[str, ...] = ()
    client_lag_ms: float | None = None
    cost_law: CostLaw | None = None


class Environment(Part):
    """Where it was measured."""

    platform: str
    processor: str
    processor_count: int
    memory_bytes: int
    python: str
    packages: dict[str, str]
    load_average_1min: float


class Report(Part):
    """The whole verification. `schema_version` changes when a field changes its meaning."""

    schema_version: int = REPORT_SCHEMA
    draftyard_version: str
    created_at: str
    outcome: str
    exit_code: int
    headline: str
    gates: tuple[GateResult, ...]
    variants: tuple[VariantResult, ...]
    environment: Environment
    settings: Verify
    prompt_pack: str
    definitions: dict[str, str]
    reproduce: tuple[str, ...]
    method: tuple[str, ...] = ()
    profile: Profile = Profile.PERF
    extensions: dict[str, JsonValue] = Field(default_factory=dict)
