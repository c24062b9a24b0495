"""What a person wrote: target, speculators, devices, precisions, limits, gates."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from draftyard.nouns.enums import StrEnum
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.recipe_section import Count, Section, Whole
from draftyard.nouns.verification import Verify

ModelPath = Annotated[str, Field(min_length=1)]
PickleFlag = Annotated[
    bool,
    Field(
        strict=True,
        description="Read weights from pickles (.bin, .pt) where there is no safetensors file; nothing in them is run.",
    ),
]
# Each path leads from the last token to one node: the rank of the candidate taken on every level.
Choices: TypeAlias = tuple[tuple[Whole, ...], ...]

# Nodes of the tree when a recipe names none, and its levels where the weights allow more (TensorRT-LLM's defaults).
DEFAULT_TREE_NODES = 63
DEFAULT_TREE_DEPTH = 4


class Target(Section):
    """The model whose output is served."""

    path: str = Field(description="Directory in Hugging Face layout; relative to the recipe file.")
    allow_pickle: PickleFlag = False
    tp_size: Count = Field(1, description="Tensor parallel size.")
    pp_size: Count = Field(1, description="Pipeline parallel size.")


class AnySpeculator(Section):
    """What all ways to speculate have in common."""

    precisions: tuple[Precision, ...] = Field(
        (), description="Precisions of the recipe that it is built in; none listed: all of them."
    )

    def built_in(self, precision: Precision) -> bool:
        """Whether a person wants this way to speculate in a precision."""
        return not self.precisions or precision in self.precisions


class NgramSpeculator(AnySpeculator):
    """Drafts by looking up the last tokens earlier in the sequence; needs no weights."""

    kind: Literal[SpeculatorKind.NGRAM]
    max_draft_len: Count = Field(4, description="Tokens drafted per step at most.")
    min_match: Count = Field(1, description="Fewest trailing tokens that must match.")
    max_match: Count = Field(3, description="Most trailing tokens that are tried first.")

    @model_validator(mode="after")
    def _ordered(self) -> "NgramSpeculator":
        if self.min_match > self.max_match:
            raise ValueError("min_match must not exceed max_match")
        return self

    @property
    def draft_depth(self) -> int:
        """Draft tokens accepted in one step at most: a chain can stand as a whole."""
        return self.max_draft_len


class DraftTargetSpeculator(AnySpeculator):
    """A smaller model with the target's tokenizer proposes a chain of tokens."""

    kind: Literal[SpeculatorKind.DRAFT_TARGET]
    path: str = Field(description="Directory of the draft model; relative to the recipe file.")
    allow_pickle: PickleFlag = False
    max_draft_len: Count = Field(4, description="Tokens drafted per step at most.")
    tp_size: Count = Field(1, description="Tensor parallel size of the draft, its own.")

    @property
    def draft_depth(self) -> int:
        """Draft tokens accepted in one step at most: a chain can stand as a whole."""
        return self.max_draft_len


def dynamic_tree_nodes(top_k: int, depth: int) -> int:
    """Most nodes of a tree grown by confidence: `top_k` on the first level, `top_k` squared on each further one."""
    return top_k + top_k * top_k * (depth - 1)


def _nodes(known: Mapping[str, object]) -> int:
    """Nodes of the tree that the other keys describe."""
    choices, top_k = known.get("choices"), known.get("dynamic_tree_max_top_k")
    depth = known.get("num_eagle_layers", known.get("depth"))
    if isinstance(choices, tuple) and choices:
        return len(choices)
    if isinstance(top_k, int) and isinstance(depth, int):
        return min(dynamic_tree_nodes(top_k, depth), DEFAULT_TREE_NODES)
    return DEFAULT_TREE_NODES


def _chain_or_nodes(known: Mapping[str, object]) -> int:
    """Without a dynamic tree one node a level."""
    depth = known.get("depth")
    return depth if isinstance(depth, int) and known.get("dynamic_tree_max_top_k") is None else _nodes(known)


class MedusaSpeculator(AnySpeculator):
    """Heads beside the target's own predict the tokens after the next one, all at once; a tree of them is verified."""

    kind: Literal[SpeculatorKind.MEDUSA]
    path: ModelPath = Field(description="Directory of the heads; relative to the recipe file.")
    allow_pickle: PickleFlag = False
    heads: Count | None = Field(None, description="Heads in use, counted from the first; unset: all that are stored.")
    choices: Choices | None = Field(
        None, min_length=1, description="Nodes of the tree, such as [[0], [0, 0], [1]]; unset: a tree of max_draft_len."
    )
    max_draft_len: Count = Field(
        default_factory=_nodes, description="Nodes verified per step at most; unset: as many as choices, or 63."
    )

    @property
    def draft_depth(self) -> int:
        """Draft tokens accepted in one step at most: the levels of the tree."""
        if self.choices is not None:
            return max(len(path) for path in self.choices)
        return min(self.heads or DEFAULT_TREE_DEPTH, self.max_draft_len)


class EagleSpeculator(AnySpeculator):
    """A small network predicts the target's next features from its last ones (EAGLE-1 and EAGLE-2)."""

    kind: Literal[SpeculatorKind.EAGLE]
    path: ModelPath = Field(description="Directory of the EAGLE network; relative to the recipe file.")
    allow_pickle: PickleFlag = False
    num_eagle_layers: Count = Field(DEFAULT_TREE_DEPTH, description="Drafting steps: the levels of the tree.")
    choices: Choices | None = Field(
        None, min_length=1, description="Nodes of a static tree, such as [[0], [0, 0], [1]] (EAGLE-1)."
    )
    dynamic_tree_max_top_k: Count | None = Field(
        None, description="Candidates of each node of a tree grown by confidence (EAGLE-2); goes without choices."
    )
    max_non_leaves_per_layer: Count = Field(10, description="Nodes of one level that have children, at most.")
    max_draft_len: Count = Field(
        default_factory=_nodes, description="Nodes verified per step at most; unset: the whole tree, or 63."
    )

    @model_validator(mode="after")
    def _one_tree(self) -> "EagleSpeculator":
        if self.choices is not None and self.dynamic_tree_max_top_k is not None:
            raise ValueError("choices and dynamic_tree_max_top_k describe two trees; give one of them")
        return self

    @property
    def draft_depth(self) -> int:
        """Draft tokens accepted in one step at most: the levels of the tree."""
        return self.num_eagle_layers


class Eagle3Speculator(AnySpeculator):
    """A small network predicts tokens from features of three layers of the target (EAGLE-3)."""

    kind: Literal[SpeculatorKind.EAGLE3]
    path: ModelPath = Field(description="Directory of the EAGLE-3 network; relative to the recipe file.")
    allow_pickle: PickleFlag = False
    depth: Count = Field(DEFAULT_TREE_DEPTH, description="Drafting steps: the levels of the tree, or the whole chain.")
    dynamic_tree_max_top_k: Count | None = Field(
        None, description="Candidates of each node of a tree grown by confidence; unset: a chain."
    )
    max_draft_len: Count = Field(
        default_factory=_chain_or_nodes,
        description="Nodes verified per step at most; unset: depth for a chain, else the whole tree, up to 63.",
    )

    @property
    def draft_depth(self) -> int:
        """Draft tokens accepted in one step at most: the levels of the tree."""
        return self.depth


class MtpSpeculator(AnySpeculator):
    """A module trained with the target to predict one token more, used again for each further one."""

    kind: Literal[SpeculatorKind.MTP]
    path: ModelPath = Field(description="Directory with the module's weights; relative to the recipe file.")
    allow_pickle: PickleFlag = False
    max_draft_len: Count = Field(1, description="Tokens drafted per step at most.")

    @property
    def draft_depth(self) -> int:
        """Draft tokens accepted in one step at most: a chain can stand as a whole."""
        return self.max_draft_len


class LookaheadSpeculator(AnySpeculator):
    """The target itself fills a window of guesses and verifies the n-grams found in it; needs no weights."""

    kind: Literal[SpeculatorKind.LOOKAHEAD]
    window_size: Annotated[int, Field(ge=2, strict=True)] = Field(7, description="Guesses kept on each level.")
    ngram_size: Annotated[int, Field(ge=2, strict=True)] = Field(7, description="Tokens of an n-gram, the first known.")
    verification_set_size: Count = Field(7, description="N-grams verified per step at most.")

    @property
    def max_draft_len(self) -> int:
        """Draft tokens of one step: window and verified n-grams together, as TensorRT-LLM 1.2.1 counts them."""
        levels = self.ngram_size - 1
        return self.ngram_size - 2 + (self.window_size - 1 + self.verification_set_size) * levels

    @property
    def draft_depth(self) -> int:
        """Draft tokens accepted in one step at most: an n-gram without its known first token."""
        return self.ngram_size - 1


Speculator = Annotated[
    NgramSpeculator
    | DraftTargetSpeculator
    | MedusaSpeculator
    | EagleSpeculator
    | Eagle3Speculator
    | MtpSpeculator
    | LookaheadSpeculator,
    Field(discriminator="kind"),
]
# Those whose weights lie in a directory of their own and hang on the target's features.
HeadSpeculator: TypeAlias = MedusaSpeculator | EagleSpeculator | Eagle3Speculator | MtpSpeculator


class KvCachePrecision(StrEnum):
    """How keys and values are cached: as the activations are, or in FP8."""

    NONE = "none"
    FP8 = "fp8"


class KvScale(StrEnum):
    """Where the scale of an FP8 KV cache comes from: the calibration, or 1 because a person says so."""

    MEASURED = "measured"
    UNIT = "unit"


class UncalibratedExperts(StrEnum):
    """What becomes of an expert that no calibration token reached."""

    FAIL = "fail"
    SIBLING_MAX = "sibling_max"


class Calibration(Section):
    """The texts whose largest activations become the scales of FP8."""

    prompts: Annotated[str, Field(min_length=1)] = Field(
        description="File with one text a line, or JSONL with a text field or messages; relative to the recipe file."
    )
    text_field: Annotated[str, Field(min_length=1)] = Field(
        "text", description="Key of the text in JSONL lines without messages."
    )
    samples: Count = Field(512, description="Texts used, counted from the first.")
    max_tokens: Count = Field(512, description="Tokens used of one text, counted from its start.")


# Modules that stay as they are: TensorRT-LLM's own list for a checkpoint that names none (quantization/quantize.py).
EXCLUDED_MODULES = (
    "*lm_head",
    "*router",
    "*vocab_embedding",
    "*position_embedding",
    "*block_embedding",
    "*shared_expert_gate",
)


class Quantisation(Section):
    """How weights, activations and the KV cache become FP8; read by the precision fp8 alone."""

    calibration: Calibration | None = Field(
        None, description="Texts to calibrate with; unset: only models that are FP8 already."
    )
    kv_cache: KvCachePrecision = Field(KvCachePrecision.NONE, description="Precision of the KV cache.")
    kv_scale: KvScale = Field(KvScale.MEASURED, description="Scale of an FP8 KV cache.")
    uncalibrated_experts: UncalibratedExperts = Field(
        UncalibratedExperts.FAIL, description="An expert that no calibration token reached."
    )
    exclude_modules: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        EXCLUDED_MODULES,
        description="Modules left in 16 bit, as patterns; null leaves the choice to TensorRT-LLM, [] excludes nothing.",
    )


class Limits(Section):
    """Sizes an engine is built for; tokens throughout."""

    max_batch_size: Count = Field(8, description="Sequences decoded at once.")
    max_input_len: Count = Field(1024, description="Prompt tokens of one request.")
    max_seq_len: Count = Field(2048, description="Prompt plus output tokens of one request.")
    max_num_tokens: Count = Field(2048, description="Tokens processed in one step over all sequences.")

    @model_validator(mode="after")
    def _consistent(self) -> "Limits":
        if self.max_input_len >= self.max_seq_len:
            raise ValueError("max_input_len must be below max_seq_len, or no token can be generated")
        if self.max_num_tokens < self.max_batch_size:
            raise ValueError("max_num_tokens must be at least max_batch_size, or a full batch cannot step")
        return self


class Serving(Section):
    """What the server is told."""

    kv_cache_tokens: Count | None = Field(
        None, description="Tokens the KV cache holds over all sequences; unset: max_batch_size x max_seq_len."
    )
    max_queue_size: Count = Field(64, description="Requests that may wait; more are refused.")
    default_timeout_s: Annotated[float, Field(gt=0)] = Field(
        300.0, description="A request that waits longer is refused."
    )


class Recipe(Section):
    """The whole request of a person; whole in itself, no inheritance."""

    version: Literal[1] = Field(description="Format of this file.")
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = Field(description="Short name, for people.")
    target: Target
    speculators: tuple[Speculator, ...] = Field((), description="Ways to speculate; plain decoding is always built.")
    lanes: tuple[Lane, ...] = Field(min_length=1, description="Who executes: tensorrt, llmapi, reference.")
    gpus: tuple[Gpu, ...] = Field(min_length=1, description="Devices; cpu goes with the reference lane.")
    precisions: tuple[Precision, ...] = Field(min_length=1, description="fp16, bf16, fp8; fp32 for reference.")
    limits: Limits = Limits()
    quantisation: Quantisation = Quantisation()
    trtllm_build: Mapping[str, str] = Field(
        default_factory=dict,
        description="Options of trtllm-build for engines of the tensorrt lane, such as gemm_swiglu_plugin: fp8.",
    )
    serving: Serving = Serving()
    verify: Verify

    @model_validator(mode="after")
    def _distinct(self) -> "Recipe":
        for name, values in (("lanes", self.lanes), ("gpus", self.gpus), ("precisions", self.precisions)):
            if len(set(values)) != len(values):
                raise ValueError(f"{name} lists a value twice; name each once")
        return self

    @model_validator(mode="after")
    def _precisions_known(self) -> "Recipe":
        for speculator in self.speculators:
            unknown = [one for one in speculator.precisions if one not in self.precisions]
            if unknown:
                raise ValueError(f"precisions of {speculator.kind} name {unknown[0]}, which the recipe does not build")
        return self

    @model_validator(mode="after")
    def _drafts_fit(self) -> "Recipe":
        longest = max((speculator.max_draft_len for speculator in self.speculators), default=0)
        if longest >= self.limits.max_seq_len:
            raise ValueError(f"max_draft_len {longest} must be below limits.max_seq_len {self.limits.max_seq_len}")
        return self
