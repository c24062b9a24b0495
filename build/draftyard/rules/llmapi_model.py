"""The `model.yaml` of TensorRT-LLM's PyTorch backend in Triton: sizes, cache and the way it speculates."""

from collections.abc import Mapping
from dataclasses import dataclass

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.recipe import (
    DraftTargetSpeculator,
    Eagle3Speculator,
    Limits,
    MtpSpeculator,
    NgramSpeculator,
    Speculator,
)

# `decoding_type` as TensorRT-LLM 1.2.1 spells it. Two texts of that line exist and which one 1.2.1 ships is not
# confirmed: one dispatches on these words, the later one says Draft_Target and Eagle3. The words below are those of
# the first; an installation tells by `DraftTargetDecodingConfig.model_fields["decoding_type"].default`.
DECODING_TYPES: Mapping[SpeculatorKind, str] = {
    SpeculatorKind.NGRAM: "NGram",
    SpeculatorKind.DRAFT_TARGET: "DraftTarget",
    SpeculatorKind.EAGLE3: "Eagle",
    SpeculatorKind.MTP: "MTP",
}
# The key for a draft's directory that both texts take.
DRAFT_KEY = "speculative_model_dir"
# Two-model speculation and n-gram lookup draft on the host, between two steps.
_NO_OVERLAP = (SpeculatorKind.NGRAM, SpeculatorKind.DRAFT_TARGET)
FREE_MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class LlmapiPlaces:
    """Directories inside the repository: the target's weights and the speculator's, if it has any."""

    target: str
    speculator: str


def model_settings(
    *,
    places: LlmapiPlaces,
    limits: Limits,
    speculator: Speculator | None,
    tp_size: int,
    pp_size: int,
    kv_cache_tokens: int,
    most_speculating: int | None = None,
) -> dict[str, Json]:
    """The whole `model.yaml`. Its keys go to the LLM constructor, which refuses what it does not know.

    `most_speculating` is the load above which speculation is off (`max_concurrency`), None for no bound.
    `triton_config.decoupled` is repeated in `config.pbtxt`: the server reads one, the model the other.
    """
    settings: dict[str, Json] = {
        "model": places.target,
        "backend": "pytorch",
        "tensor_parallel_size": tp_size,
        "pipeline_parallel_size": pp_size,
        "max_batch_size": limits.max_batch_size,
        "max_input_len": limits.max_input_len,
        "max_seq_len": limits.max_seq_len,
        "max_num_tokens": limits.max_num_tokens,
        "kv_cache_config": {
            "enable_block_reuse": True,
            "free_gpu_memory_fraction": FREE_MEMORY_SHARE,
            "max_tokens": kv_cache_tokens,
        },
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    }
    if speculator is not None:
        settings["speculative_config"] = speculative_config(speculator, places.speculator, most_speculating)
        settings["disable_overlap_scheduler"] = speculator.kind in _NO_OVERLAP
    return settings


def speculative_config(speculator: Speculator, directory: str, most_speculating: int | None) -> dict[str, Json]:
    """`speculative_config` of one speculator; Failure for those that this backend does not execute."""
    kind = SpeculatorKind(speculator.kind)
    if kind not in DECODING_TYPES:
        raise Failure(
            f"the llmapi lane does not execute {kind}",
            "use eagle3, mtp, draft_target or ngram, or the tensorrt lane",
        )
    config: dict[str, Json] = {"decoding_type": DECODING_TYPES[kind], **_fields(speculator, directory)}
    if most_speculating is not None:
        config["max_concurrency"] = most_speculating
    return config


def _fields(speculator: Speculator, directory: str) -> dict[str, Json]:
    """The fields of TensorRT-LLM 1.2's llmapi/llm_args.py for each kind; n-gram lookup searches the newest match."""
    if isinstance(speculator, NgramSpeculator):
        return {
            "max_draft_len": speculator.max_draft_len,
            "max_matching_ngram_size": speculator.max_match,
            "is_keep_all": True,
            "is_use_oldest": False,
            "is_public_pool": False,
        }
    if isinstance(speculator, DraftTargetSpeculator):
        return {"max_draft_len": speculator.max_draft_len, DRAFT_KEY: directory}
    if isinstance(speculator, Eagle3Speculator):
        return {"max_draft_len": speculator.draft_depth, DRAFT_KEY: directory, "eagle3_one_model": True}
    if isinstance(speculator, MtpSpeculator):
        return {"num_nextn_predict_layers": speculator.max_draft_len}
    raise AssertionError(f"{speculator.kind} has a decoding type but no fields")
