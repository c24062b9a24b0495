"""What a TensorRT-LLM engine is asked to be: a checkpoint, a GPU, a way to speculate and sizes."""

from collections.abc import Mapping
from dataclasses import dataclass

from draftyard.nouns.digest import Json
from draftyard.nouns.enums import StrEnum
from draftyard.nouns.gpu import Gpu


class BuildMode(StrEnum):
    """`--speculative_decoding_mode` of trtllm-build 1.2.1; `none` means that the option is left out."""

    NONE = "none"
    DRAFT_TOKENS_EXTERNAL = "draft_tokens_external"
    LOOKAHEAD = "lookahead_decoding"
    MEDUSA = "medusa"
    EAGLE = "eagle"

    @property
    def stored(self) -> int:
        """The number in an engine's `build_config.speculative_decoding_mode` (`SpeculativeDecodingMode`)."""
        return {"draft_tokens_external": 2, "medusa": 4, "lookahead_decoding": 8, "eagle": 32}.get(self.value, 1)

    @property
    def needs_tree_kernel(self) -> bool:
        """True for the modes whose verification runs on the XQA multi-query kernel (`requiresAttentionMask`)."""
        return self in (BuildMode.MEDUSA, BuildMode.EAGLE, BuildMode.LOOKAHEAD)


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """One engine to be compiled by `trtllm-build`, complete: nothing is left to the builder's defaults.

    `checkpoint` is the checkpoint's `config.json`. Sizes are in tokens, as a user means them: `max_seq_len` is prompt
    plus output without room for drafts, which the builder adds itself. `max_draft_len` counts the tokens that are
    verified in one step (the nodes of a tree); `draft_depth` the most that can be accepted. `tokens_per_block` is the
    page size of the KV cache. `overrides` are options of the builder that a person set in the recipe.
    """

    checkpoint: Mapping[str, Json]
    gpu: Gpu
    mode: BuildMode
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_draft_len: int = 0
    draft_depth: int = 0
    tokens_per_block: int = 32
    overrides: tuple[tuple[str, str], ...] = ()

    @property
    def architecture(self) -> str:
        """The model class of the checkpoint."""
        return str(self.checkpoint.get("architecture"))

    @property
    def weights_fp8(self) -> bool:
        """True when the linear layers hold FP8 weights."""
        return self._quantisation("quant_algo") == "FP8"

    @property
    def kv_cache_fp8(self) -> bool:
        """True when keys and values are cached in FP8."""
        return self._quantisation("kv_cache_quant_algo") == "FP8"

    @property
    def tp_size(self) -> int:
        """Tensor parallel ranks."""
        return self._ranks("tp_size")

    @property
    def pp_size(self) -> int:
        """Pipeline parallel stages."""
        return self._ranks("pp_size")

    def integer(self, key: str) -> int:
        """A whole number of the checkpoint's config; ValueError when it is none."""
        value = self.checkpoint.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{key} of the checkpoint's config.json is {value!r}, not a whole number")
        return value

    def _quantisation(self, key: str) -> Json:
        block = self.checkpoint.get("quantization")
        return block.get(key) if isinstance(block, Mapping) else None

    def _ranks(self, key: str) -> int:
        block = self.checkpoint.get("mapping")
        value = block.get(key, 1) if isinstance(block, Mapping) else 1
        return value if isinstance(value, int) else 1


@dataclass(frozen=True, slots=True)
class BuildRemains:
    """What a builder left: its exit code (negative: the signal), its log, its files by size, its `config.json`.

    `config` is None when the file is absent or no JSON object. `timed_out` and `out_of_host_memory` say that we ended
    it ourselves.
    """

    exit_code: int
    log: str
    files: Mapping[str, int]
    config: Mapping[str, Json] | None
    timed_out: bool = False
    out_of_host_memory: bool = False
