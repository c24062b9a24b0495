"""The tensors of the five models of a repository, as TensorRT-LLM 1.2 has them; one table for all of them.

Multimodal and encoder-decoder tensors are left out where this project's guests take the place of the vendor's.
"""

from collections.abc import Mapping
from dataclasses import replace

from draftyard.nouns.repository import LogitsType, ModelName, ModelTensors, Tensor, TritonType

BOOL, INT32, INT64 = TritonType.BOOL, TritonType.INT32, TritonType.INT64
UINT8, UINT64 = TritonType.UINT8, TritonType.UINT64
FP16, FP32, STRING = TritonType.FP16, TritonType.FP32, TritonType.STRING

LOGITS_TYPES = {LogitsType.FLOAT16: FP16, LogitsType.FLOAT32: FP32}
# Their type is that of the engine's logits.
LOGITS = frozenset({"context_logits", "generation_logits", "draft_logits"})


def _needed(name: str, kind: TritonType, *dims: int, scalar: bool = False) -> Tensor:
    return Tensor(name, kind, dims, scalar=scalar)


def _optional(name: str, kind: TritonType, *dims: int, scalar: bool = False, ragged: bool = False) -> Tensor:
    return Tensor(name, kind, dims, optional=True, scalar=scalar, ragged=ragged)


def _output(name: str, kind: TritonType, *dims: int) -> Tensor:
    return Tensor(name, kind, dims)


_STATISTICS = (
    _output("kv_cache_alloc_new_blocks", INT32, 1),
    _output("kv_cache_reused_blocks", INT32, 1),
    _output("kv_cache_alloc_total_blocks", INT32, 1),
    _output("arrival_time_ns", INT64, 1),
    _output("first_scheduled_time_ns", INT64, 1),
    _output("first_token_time_ns", INT64, 1),
    _output("last_token_time_ns", INT64, 1),
    _output("acceptance_rate", FP32, 1),
    _output("total_accepted_draft_tokens", INT32, 1),
    _output("total_draft_tokens", INT32, 1),
    _output("num_input_tokens", INT32, 1),
    _output("num_output_tokens", INT32, 1),
)
_PROBABILITIES = (
    _output("cum_log_probs", FP32, -1),
    _output("output_log_probs", FP32, -1, -1),
    _output("context_logits", FP32, -1, -1),
    _output("generation_logits", FP32, -1, -1, -1),
    _output("batch_index", INT32, 1),
    _output("sequence_index", INT32, 1),
)

_PREPROCESSING = ModelTensors(
    inputs=(
        _needed("QUERY", STRING, 1),
        _needed("REQUEST_OUTPUT_LEN", INT32, 1),
        _optional("BAD_WORDS_DICT", STRING, -1),
        _optional("STOP_WORDS_DICT", STRING, -1),
        _optional("EMBEDDING_BIAS_WORDS", STRING, -1),
        _optional("EMBEDDING_BIAS_WEIGHTS", FP32, -1),
        _optional("END_ID", INT32, 1),
        _optional("PAD_ID", INT32, 1),
    ),
    outputs=(
        _output("INPUT_ID", INT32, -1),
        _output("REQUEST_INPUT_LEN", INT32, 1),
        _output("BAD_WORDS_IDS", INT32, 2, -1),
        _output("STOP_WORDS_IDS", INT32, 2, -1),
        _output("EMBEDDING_BIAS", FP32, -1),
        _output("REQUEST_OUTPUT_LEN", INT32, -1),
        _output("OUT_END_ID", INT32, 1),
        _output("OUT_PAD_ID", INT32, 1),
    ),
)

_ENGINE = ModelTensors(
    inputs=(
        _optional("input_ids", INT32, -1, ragged=True),
        _optional("encoder_input_features", FP16, -1, -1, ragged=True),
        _optional("encoder_output_lengths", INT32, 1, scalar=True),
        _needed("input_lengths", INT32, 1, scalar=True),
        _needed("request_output_len", INT32, 1, scalar=True),
        _optional("num_return_sequences", INT32, 1, scalar=True),
        _optional("draft_input_ids", INT32, -1, ragged=True),
        _optional("decoder_input_ids", INT32, -1, ragged=True),
        _optional("decoder_input_lengths", INT32, 1, scalar=True),
        _optional("draft_logits", FP32, -1, -1, ragged=True),
        _optional("draft_acceptance_threshold", FP32, 1, scalar=True),
        _optional("end_id", INT32, 1, scalar=True),
        _optional("pad_id", INT32, 1, scalar=True),
        _optional("stop_words_list", INT32, 2, -1, ragged=True),
        _optional("bad_words_list", INT32, 2, -1, ragged=True),
        _optional("embedding_bias", FP32, -1, ragged=True),
        _optional("beam_width", INT32, 1, scalar=True),
        _optional("temperature", FP32, 1, scalar=True),
        _optional("runtime_top_k", INT32, 1, scalar=True),
        _optional("runtime_top_p", FP32, 1, scalar=True),
        _optional("runtime_top_p_min", FP32, 1, scalar=True),
        _optional("runtime_top_p_decay", FP32, 1, scalar=True),
        _optional("runtime_top_p_reset_ids", INT32, 1, scalar=True),
        _optional("len_penalty", FP32, 1, scalar=True),
        _optional("early_stopping", BOOL, 1, scalar=True),
        _optional("repetition_penalty", FP32, 1, scalar=True),
        _optional("min_tokens", INT32, 1, scalar=True),
        _optional("beam_search_diversity_rate", FP32, 1, scalar=True),
        _optional("presence_penalty", FP32, 1, scalar=True),
        _optional("frequency_penalty", FP32, 1, scalar=True),
        _optional("seed", UINT64, 1, scalar=True),
        _optional("return_log_probs", BOOL, 1, scalar=True),
        _optional("return_context_logits", BOOL, 1, scalar=True),
        _optional("return_generation_logits", BOOL, 1, scalar=True),
        _optional("return_perf_metrics", BOOL, 1, scalar=True),
        _optional("exclude_input_in_output", BOOL, 1, scalar=True),
        _optional("stop", BOOL, 1, scalar=True),
        _optional("streaming", BOOL, 1, scalar=True),
        _optional("prompt_embedding_table", FP16, -1, -1, ragged=True),
        _optional("prompt_table_extra_ids", UINT64, -1, ragged=True),
        _optional("prompt_vocab_size", INT32, 1, scalar=True),
        _optional("cross_attention_mask", BOOL, -1, -1, ragged=True),
        _optional("mrope_rotary_cos_sin", FP32, -1),
        _optional("mrope_position_deltas", INT64, 1),
        _optional("lora_task_id", UINT64, 1, scalar=True),
        _optional("lora_weights", FP16, -1, -1, ragged=True),
        _optional("lora_config", INT32, -1, 3, ragged=True),
        _optional("context_phase_params", UINT8, -1, ragged=True),
        _optional("skip_cross_attn_blocks", BOOL, 1, ragged=True),
        _optional("retention_token_range_starts", INT32, -1, ragged=True),
        _optional("retention_token_range_ends", INT32, -1, ragged=True),
        _optional("retention_token_range_priorities", INT32, -1, ragged=True),
        _optional("retention_token_range_durations_ms", INT32, -1, ragged=True),
        _optional("retention_decode_priority", INT32, 1, ragged=True),
        _optional("retention_decode_duration_ms", INT32, 1, ragged=True),
        _optional("guided_decoding_guide_type", STRING, 1, ragged=True),
        _optional("guided_decoding_guide", STRING, 1, ragged=True),
        _optional("lookahead_window_size", INT32, 1, ragged=True),
        _optional("lookahead_ngram_size", INT32, 1, ragged=True),
        _optional("lookahead_verification_set_size", INT32, 1, ragged=True),
        _optional("return_num_input_tokens", BOOL, 1, scalar=True),
        _optional("return_num_output_tokens", BOOL, 1, scalar=True),
    ),
    outputs=(
        _output("output_ids", INT32, -1, -1),
        _output("sequence_length", INT32, -1),
        *_PROBABILITIES,
        _output("context_phase_params", UINT8, -1),
        *_STATISTICS,
    ),
)

_POSTPROCESSING = ModelTensors(
    inputs=(_needed("TOKENS_BATCH", INT32, -1, -1), _needed("SEQUENCE_LENGTH", INT32, -1)),
    outputs=(_output("OUTPUT", STRING, -1),),
)

# What a client that sends text may wish of it, at the ensemble and at the entry alike.
_WISHES_OF_A_TEXT = (
    _optional("bad_words", STRING, -1),
    _optional("stop_words", STRING, -1),
    _optional("exclude_input_in_output", BOOL, 1),
    _optional("end_id", INT32, 1),
    _optional("pad_id", INT32, 1),
    _optional("top_k", INT32, 1),
    _optional("top_p", FP32, 1),
    _optional("temperature", FP32, 1),
    _optional("length_penalty", FP32, 1),
    _optional("repetition_penalty", FP32, 1),
    _optional("min_tokens", INT32, 1),
    _optional("presence_penalty", FP32, 1),
    _optional("frequency_penalty", FP32, 1),
    _optional("seed", UINT64, 1),
)

_ENSEMBLE = ModelTensors(
    inputs=(
        _needed("text_input", STRING, 1),
        _needed("max_tokens", INT32, 1),
        _optional("num_return_sequences", INT32, 1),
        *_WISHES_OF_A_TEXT,
        _optional("return_log_probs", BOOL, 1),
        _optional("return_context_logits", BOOL, 1),
        _optional("return_generation_logits", BOOL, 1),
        _optional("return_perf_metrics", BOOL, 1),
        _optional("beam_width", INT32, 1),
        _optional("stream", BOOL, 1),
        _optional("prompt_embedding_table", FP16, -1, -1),
        _optional("prompt_vocab_size", INT32, 1),
        _optional("embedding_bias_words", STRING, -1),
        _optional("embedding_bias_weights", FP32, -1),
        _optional("lora_task_id", UINT64, 1),
        _optional("lora_weights", FP16, -1, -1, ragged=True),
        _optional("lora_config", INT32, -1, 3, ragged=True),
        _optional("guided_decoding_guide_type", STRING, 1, ragged=True),
        _optional("guided_decoding_guide", STRING, 1, ragged=True),
        _optional("return_num_input_tokens", BOOL, 1),
        _optional("return_num_output_tokens", BOOL, 1),
    ),
    outputs=(_output("text_output", STRING, -1), *_PROBABILITIES, *_STATISTICS),
)

_ENTRY = ModelTensors(
    inputs=(
        _needed("text_input", STRING, 1),
        _optional("decoder_text_input", STRING, 1),
        _needed("max_tokens", INT32, 1),
        *_WISHES_OF_A_TEXT,
        _optional("return_log_probs", BOOL, 1, scalar=True),
        _optional("return_context_logits", BOOL, 1, scalar=True),
        _optional("return_generation_logits", BOOL, 1, scalar=True),
        _optional("num_return_sequences", INT32, 1, scalar=True),
        _optional("beam_width", INT32, 1),
        _optional("stream", BOOL, 1),
        _optional("prompt_embedding_table", FP16, -1, -1),
        _optional("prompt_vocab_size", INT32, 1),
        _optional("prompt_table_extra_id", UINT64, 1),
        _optional("embedding_bias_words", STRING, -1),
        _optional("embedding_bias_weights", FP32, -1),
        _optional("num_draft_tokens", INT32, 1),
        _optional("use_draft_logits", BOOL, 1, scalar=True),
        _optional("lora_task_id", UINT64, 1, scalar=True),
        _optional("lora_weights", FP16, -1, -1, ragged=True),
        _optional("lora_config", INT32, -1, 3, ragged=True),
        _optional("return_perf_metrics", BOOL, 1, scalar=True),
        _optional("guided_decoding_guide_type", STRING, 1),
        _optional("guided_decoding_guide", STRING, 1),
        _optional("return_num_input_tokens", BOOL, 1, scalar=True),
        _optional("return_num_output_tokens", BOOL, 1, scalar=True),
    ),
    outputs=(
        _output("text_output", STRING, -1),
        *_PROBABILITIES,
        *_STATISTICS,
        # Additions of this project: why the stream ended, and the tokens that a response adds.
        _output("finish_reason", STRING, 1),
        _output("output_token_ids", INT32, -1),
    ),
)

_TABLES: Mapping[ModelName, ModelTensors] = {
    ModelName.PREPROCESSING: _PREPROCESSING,
    ModelName.ENGINE: _ENGINE,
    ModelName.DRAFT_ENGINE: _ENGINE,
    ModelName.POSTPROCESSING: _POSTPROCESSING,
    ModelName.ENSEMBLE: _ENSEMBLE,
    ModelName.ENTRY: _ENTRY,
}

# Ensemble maps: (the step's tensor, the ensemble's tensor). Internal tensors start with an underscore.
PREPROCESSING_INPUTS: tuple[tuple[str, str], ...] = (
    ("QUERY", "text_input"),
    ("REQUEST_OUTPUT_LEN", "max_tokens"),
    ("BAD_WORDS_DICT", "bad_words"),
    ("STOP_WORDS_DICT", "stop_words"),
    ("EMBEDDING_BIAS_WORDS", "embedding_bias_words"),
    ("EMBEDDING_BIAS_WEIGHTS", "embedding_bias_weights"),
    ("END_ID", "end_id"),
    ("PAD_ID", "pad_id"),
)
PREPROCESSING_OUTPUTS: tuple[tuple[str, str], ...] = (
    ("REQUEST_INPUT_LEN", "_REQUEST_INPUT_LEN"),
    ("INPUT_ID", "_INPUT_ID"),
    ("REQUEST_OUTPUT_LEN", "_REQUEST_OUTPUT_LEN"),
    ("STOP_WORDS_IDS", "_STOP_WORDS_IDS"),
    ("BAD_WORDS_IDS", "_BAD_WORDS_IDS"),
    ("EMBEDDING_BIAS", "_EMBEDDING_BIAS"),
    ("OUT_END_ID", "_PREPROCESSOR_END_ID"),
    ("OUT_PAD_ID", "_PREPROCESSOR_PAD_ID"),
)
_SAME_NAME = (
    "exclude_input_in_output",
    "num_return_sequences",
    "beam_width",
    "temperature",
    "repetition_penalty",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "return_log_probs",
    "return_context_logits",
    "return_generation_logits",
    "return_perf_metrics",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "prompt_embedding_table",
    "prompt_vocab_size",
    "lora_task_id",
    "lora_weights",
    "lora_config",
    "guided_decoding_guide_type",
    "guided_decoding_guide",
)
ENGINE_INPUTS: tuple[tuple[str, str], ...] = (
    ("input_ids", "_INPUT_ID"),
    ("input_lengths", "_REQUEST_INPUT_LEN"),
    ("request_output_len", "_REQUEST_OUTPUT_LEN"),
    ("end_id", "_PREPROCESSOR_END_ID"),
    ("pad_id", "_PREPROCESSOR_PAD_ID"),
    ("embedding_bias", "_EMBEDDING_BIAS"),
    ("stop_words_list", "_STOP_WORDS_IDS"),
    ("bad_words_list", "_BAD_WORDS_IDS"),
    ("runtime_top_k", "top_k"),
    ("runtime_top_p", "top_p"),
    ("len_penalty", "length_penalty"),
    ("streaming", "stream"),
    *((name, name) for name in _SAME_NAME),
)
ENGINE_OUTPUTS: tuple[tuple[str, str], ...] = (
    ("output_ids", "_TOKENS_BATCH"),
    ("sequence_length", "_SEQUENCE_LENGTH"),
    *((tensor.name, tensor.name) for tensor in (*_PROBABILITIES, *_STATISTICS)),
)
POSTPROCESSING_INPUTS = (("TOKENS_BATCH", "_TOKENS_BATCH"), ("SEQUENCE_LENGTH", "_SEQUENCE_LENGTH"))
POSTPROCESSING_OUTPUTS = (("OUTPUT", "text_output"),)


def model_tensors(model: ModelName, logits_type: LogitsType) -> ModelTensors:
    """Inputs and outputs of one model; logits have the type the engine was built with, in every model alike."""
    table = _TABLES[model]
    kind = LOGITS_TYPES[logits_type]

    def typed(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(replace(tensor, type=kind) if tensor.name in LOGITS else tensor for tensor in tensors)

    return ModelTensors(typed(table.inputs), typed(table.outputs))
