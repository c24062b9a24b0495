"""What a prediction is made from and what it says; times in milliseconds, sizes in bytes and elements."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class Link(StrEnum):
    """How the devices of one engine talk to each other."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    NONE = "none"


class Routing(StrEnum):
    """How the tokens of a batch spread over experts: as if by chance, or all to the same ones."""

    SPREAD = "spread"
    SAME = "same"


class Roof(StrEnum):
    """What a step waits for most."""

    MEMORY = "memory"
    COMPUTE = "compute"
    OVERHEAD = "overhead"


class Fit(StrEnum):
    """Whether a variant fits its device: `tight` means inside the margin that published peaks need."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder as counts of elements, summed over its layers; embeddings apart.

    `expert_weights` is one expert over all layers that have experts. `kv_elements` are the elements that one token
    keeps over all layers with full attention, `window_kv_elements` over those that see `window` tokens at most.
    `attention_width` is query heads x head size over the layers with full attention, `window_attention_width` over
    the others. `kv_heads` bounds how far the cache can be split.
    """

    name: str
    layers: int
    hidden: int
    vocabulary: int
    attention_weights: int
    dense_weights: int
    kv_heads: int
    kv_elements: int
    attention_width: int
    expert_weights: int = 0
    experts: int = 0
    experts_per_token: int = 0
    window: int = 0
    window_kv_elements: int = 0
    window_attention_width: int = 0
    tied_head: bool = False

    @property
    def linear_weights(self) -> int:
        """Elements of all matrices but embeddings and head."""
        return self.attention_weights + self.dense_weights + self.experts * self.expert_weights

    @property
    def embedding_weights(self) -> int:
        """Elements of the token table and of the head, the table once when both are tied."""
        return self.vocabulary * self.hidden * (1 if self.tied_head else 2)

    @property
    def parameters(self) -> int:
        """All elements."""
        return self.linear_weights + self.embedding_weights

    @property
    def active_weights(self) -> int:
        """Elements of the matrices that one token passes, embeddings and head apart."""
        return self.attention_weights + self.dense_weights + self.experts_per_token * self.expert_weights


@dataclass(frozen=True, slots=True)
class Device:
    """Constants of one device. Peaks are dense, in FLOP/s; `link_bytes_per_s` is one way.

    `pair_link` says that only two devices share the fast link, and more of them talk over PCIe.
    """

    name: str
    usable_bytes: float
    bandwidth_bytes_per_s: float
    peak_16bit: float
    peak_8bit: float
    link_bytes_per_s: float
    pair_link: bool = False


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes of one element: of the matrices, of embeddings and head, of the cache, of activations.

    `compute_8bit` says that products run at the 8-bit peak.
    """

    weight_bytes: float
    embedding_bytes: float
    cache_bytes: float
    activation_bytes: float
    compute_8bit: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """One model on its devices."""

    shape: ModelShape
    device: Device
    storage: Storage
    tp: int


@dataclass(frozen=True, slots=True)
class StepTerms:
    """What one step would take if each part ran alone at the peak of the data sheet, in ms; counts without unit.

    Arithmetic is kept apart by where it runs: 16-bit matrices and the head, 8-bit matrices, matrices of experts.
    """

    weights_ms: float
    compute_ms: float
    compute_8bit_ms: float
    expert_ms: float
    cache_ms: float
    attention_ms: float
    activation_ms: float
    reduce_ms: float
    reduces: float
    hops: float
    slow_reduces: float
    slow_hops: float
    layers: float
    expert_layers: float
    sequences: float
    tokens: float


@dataclass(frozen=True, slots=True)
class StepCoefficients:
    """Multipliers on the ideal times of a step (1 / efficiency), and fixed times in microseconds.

    `sharpness` is the exponent of the smooth sum of weight reading and compute: 1 adds them, infinity takes the
    larger. `reduce_us` and `hop_us` are the start of an all-reduce and its growth for each further device.
    """

    weights: float
    compute: float
    compute_8bit: float
    expert: float
    cache: float
    attention: float
    activation: float
    reduce: float
    reduce_us: float
    hop_us: float
    slow_reduce_us: float
    slow_hop_us: float
    layer_us: float
    expert_layer_us: float
    step_us: float
    sequence_us: float
    sharpness: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of one use of one device's memory, and how they come about."""

    part: str
    size_bytes: float
    formula: str


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """What one device holds while the variant serves, against what it reports as usable; None: host memory.

    `sequences_plain` and `sequences` are how many requests of the assumed lengths the cache holds, without and with the
    speculator's share of it.
    """

    parts: tuple[MemoryUse, ...]
    total: Estimate
    usable_bytes: float | None
    fit: Fit
    sequences_plain: int
    sequences: int
    pool_tokens: int


@dataclass(frozen=True, slots=True)
class LoadForecast:
    """One concurrency. `intensity` is FLOPs per byte of the plain step, `limit_share` its speed over the bandwidth's.

    `step_ms` is a plain decode step, `tpot_ms` with the share of prompts that each step carries; `spec_tpot_ms`,
    `speedup`, `cost` and `best_draft` belong to the speculator and are None for plain decoding. `waiting` says that the
    cache holds fewer requests than this, so that some wait.
    """

    concurrency: int
    ttft_ms: Estimate
    step_ms: Estimate
    tpot_ms: Estimate
    tokens_per_s_per_gpu: Estimate
    intensity: float
    roof: Roof
    limit_share: float
    waiting: bool
    cost: Estimate | None = None
    spec_tpot_ms: Estimate | None = None
    spec_tokens_per_s_per_gpu: Estimate | None = None
    speedup: Estimate | None = None
    best_draft: int | None = None


@dataclass(frozen=True, slots=True)
class AcceptanceGuess:
    """The acceptance a forecast rests on: tokens per step (the bonus token counts), conditional rates, and their
    source in words (`assumed ...`, `given`, `measured ...`)."""

    length: float
    rates: tuple[float, ...]
    source: str


@dataclass(frozen=True, slots=True)
class CrossoverForecast:
    """The concurrency above which speculation stops paying, as a range; None: not up to `searched_to`."""

    concurrency: float | None
    low: float | None
    high: float | None
    searched_to: int


@dataclass(frozen=True, slots=True)
class VariantForecast:
    """Everything that is predicted of one variant; `source` says which measurements the coefficients come from.

    `break_even_length` is the acceptance length at which speculation costs nothing at concurrency 1.
    """

    variant: str
    device: str
    tp: int
    source: str
    input_tokens: int
    output_tokens: int
    memory: MemoryForecast
    loads: tuple[LoadForecast, ...]
    bandwidth_bytes_per_s: float
    peak_flops: float
    acceptance: AcceptanceGuess | None = None
    break_even_length: Estimate | None = None
    crossover: CrossoverForecast | None = None
    notes: tuple[str, ...] = ()
    others: "tuple[OtherEstimate, ...]" = ()

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which reading and computing take equally long."""
        return self.peak_flops / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one variant at one load. `surprise`: measured outside the 90 % interval of the prediction."""

    variant: str
    concurrency: int
    figure: str
    predicted: Estimate
    measured: float

    @property
    def surprise(self) -> bool:
        """True when the interval does not hold the measured value."""
        return not self.predicted.low <= self.measured <= self.predicted.high

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted.value / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class OtherEstimate:
    """What another estimator says of plain decoding at one load, in ms."""

    estimator: str
    concurrency: int
    ttft_ms: float
    tpot_ms: float
