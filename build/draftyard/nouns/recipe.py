"""What a person wrote: target, speculators, devices, precisions, limits, gates."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Precision

# Strict: YAML has whole numbers of its own, and `true` or "1" in their place is a slip.
Count = Annotated[int, Field(ge=1, strict=True)]


class Section(BaseModel):
    """A part of the recipe: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Target(Section):
    """The model whose output is served."""

    path: str = Field(description="Directory in Hugging Face layout; relative to the recipe file.")
    tp_size: Count = Field(1, description="Tensor parallel size.")
    pp_size: Count = Field(1, description="Pipeline parallel size.")


class NgramSpeculator(Section):
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


class DraftTargetSpeculator(Section):
    """A smaller model with the target's tokenizer proposes a chain of tokens."""

    kind: Literal[SpeculatorKind.DRAFT_TARGET]
    path: str = Field(description="Directory of the draft model; relative to the recipe file.")
    max_draft_len: Count = Field(4, description="Tokens drafted per step at most.")
    tp_size: Count = Field(1, description="Tensor parallel size of the draft, its own.")


Speculator = Annotated[NgramSpeculator | DraftTargetSpeculator, Field(discriminator="kind")]


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


class Gates(Section):
    """What must hold for a verification to pass; unset gates are reported, not enforced."""

    lossless: bool = Field(True, description="Greedy output with speculation must equal output without.")
    min_speedup: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Least output rate ratio at concurrency 1."
    )
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="Most failed requests, as a share.")


class Verify(Section):
    """How a served repository is measured."""

    concurrency: tuple[Count, ...] = Field((1, 2, 4, 8), description="Concurrent requests of each tier.")
    requests_per_tier: Count = Field(8, description="Requests of one arm at one tier, at least the concurrency.")
    max_tokens: Count = Field(64, description="Output tokens of a request at most.")
    prompts: str = Field(description="Prompt pack: a directory or JSONL file; relative to the recipe file.")
    gates: Gates = Gates()

    @model_validator(mode="after")
    def _rising(self) -> "Verify":
        if not self.concurrency or list(self.concurrency) != sorted(set(self.concurrency)):
            raise ValueError("concurrency must list rising numbers, such as 1, 2, 4, 8")
        return self


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
    serving: Serving = Serving()
    verify: Verify

    @model_validator(mode="after")
    def _distinct(self) -> "Recipe":
        for name, values in (("lanes", self.lanes), ("gpus", self.gpus), ("precisions", self.precisions)):
            if len(set(values)) != len(values):
                raise ValueError(f"{name} lists a value twice; name each once")
        return self

    @model_validator(mode="after")
    def _drafts_fit(self) -> "Recipe":
        longest = max((speculator.max_draft_len for speculator in self.speculators), default=0)
        if longest >= self.limits.max_seq_len:
            raise ValueError(f"max_draft_len {longest} must be below limits.max_seq_len {self.limits.max_seq_len}")
        return self
