"""Every option of `trtllm-build` 1.2.1: type, default, range, and what overrides it without an error."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class OptionType(StrEnum):
    """How an option takes its value."""

    TEXT = "text"
    NUMBER = "number"
    SWITCH = "switch"
    CHOICE = "choice"
    MANY = "many"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` is spelt as on a command line, None when there is none; `least` bounds a number.

    `overridden` tells when the builder changes the value without failing; such values are compared after the build.
    """

    name: str
    type: OptionType
    default: str | None = None
    choices: tuple[str, ...] = ()
    least: int = 0
    overridden: str = ""


ONOFF = ("enable", "disable")
_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")


def _text(name: str, default: str | None = None, overridden: str = "") -> Option:
    return Option(name, OptionType.TEXT, default, overridden=overridden)


def _number(name: str, default: str | None, least: int = 0, overridden: str = "") -> Option:
    return Option(name, OptionType.NUMBER, default, least=least, overridden=overridden)


def _choice(name: str, default: str | None, choices: tuple[str, ...], overridden: str = "") -> Option:
    return Option(name, OptionType.CHOICE, default, choices, overridden=overridden)


def _switch(name: str) -> Option:
    return Option(name, OptionType.SWITCH)


# tensorrt_llm/commands/build.py of the 1.2 line.
GENERAL: tuple[Option, ...] = (
    _text("checkpoint_dir"),
    _text("model_config"),
    _text("build_config", overridden="given: every size, speculation and logits option is ignored"),
    _text("model_cls_file"),
    _text("model_cls_name"),
    _text("output_dir", "engine_outputs"),
    _number("max_batch_size", "2048", 1),
    _number("max_input_len", "1024", 1, "ignored with padding removal and context FMHA"),
    _number("max_seq_len", None, 1, "with a speculation mode: grows by max_draft_len, EAGLE also by num_eagle_layers"),
    _number("max_beam_width", "1", 1),
    _number("max_num_tokens", "8192", 1, "raised to max_batch_size x (max_draft_len + 1); clamped to batch x seq"),
    _number("opt_num_tokens", None, 1),
    _number("max_encoder_input_len", "1024", 1),
    _number("max_prompt_embedding_table_size", "0"),
    _choice("kv_cache_type", None, ("continuous", "paged", "disabled")),
    _choice("paged_kv_cache", None, ONOFF, "deprecated: kv_cache_type decides"),
    _text("input_timing_cache", overridden="ignored when it is missing or of another version"),
    _text("output_timing_cache", "model.cache", "a relative path lands in the working directory"),
    _choice("profiling_verbosity", "layer_names_only", ("layer_names_only", "detailed", "none")),
    _switch("strip_plan"),
    _switch("weight_sparsity"),
    _switch("weight_streaming"),
    _switch("fast_build"),
    _number("workers", "1", 1, "at most the number of GPUs"),
    _choice("log_level", "info", ("internal_error", "error", "warning", "info", "verbose", "debug")),
    _switch("enable_debug_output"),
    _text("visualize_network"),
    _switch("dry_run"),
    _switch("monitor_memory"),
    _choice("logits_dtype", None, ("float16", "float32")),
    _switch("gather_context_logits"),
    _switch("gather_generation_logits"),
    _switch("gather_all_token_logits"),
    Option("lora_dir", OptionType.MANY),
    _choice("lora_ckpt_source", "hf", ("hf", "nemo")),
    Option("lora_target_modules", OptionType.MANY),
    _number("max_lora_rank", "64", 1),
    _choice(
        "speculative_decoding_mode",
        None,
        ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle"),
        "left out: an engine without speculation is built, also from Medusa and EAGLE checkpoints",
    ),
    _number(
        "max_draft_len", "0", 0, "0: the checkpoint's value; Medusa and EAGLE networks always use the checkpoint's"
    ),
)

# tensorrt_llm/plugin/plugin.py of the 1.2 line; each takes a value, booleans too.
PLUGINS: tuple[Option, ...] = (
    _choice("bert_attention_plugin", "auto", _DTYPES),
    _choice("gpt_attention_plugin", "auto", _DTYPES),
    _choice("gemm_plugin", "disable", (*_DTYPES, "fp8", "nvfp4")),
    _choice("gemm_swiglu_plugin", "disable", ("fp8", "disable")),
    _choice("fp8_rowwise_gemm_plugin", "disable", _DTYPES),
    _choice("lora_plugin", "disable", _DTYPES),
    _choice("dora_plugin", "disable", ONOFF),
    _choice("moe_plugin", "auto", _DTYPES),
    _choice("mamba_conv1d_plugin", "auto", _DTYPES),
    _choice("nccl_plugin", "auto", _DTYPES),
    _choice("low_latency_gemm_plugin", "disable", ("fp8", "disable")),
    _choice("low_latency_gemm_swiglu_plugin", "disable", ("fp8", "disable")),
    _choice("gemm_allreduce_plugin", "disable", ("float16", "bfloat16", "disable")),
    _choice("context_fmha", "enable", ONOFF),
    _choice("bert_context_fmha_fp32_acc", "disable", ONOFF),
    _choice("remove_input_padding", "enable", ONOFF),
    _number("tokens_per_block", "32", 1),
    _choice("use_paged_context_fmha", "enable", ONOFF, "off for an FP8 KV cache without FP8 weights; on for EAGLE"),
    _choice("use_fp8_context_fmha", "enable", ONOFF, "on or off by weights and KV cache, whatever is asked"),
    _choice("fuse_fp4_quant", "disable", ONOFF),
    _choice("multiple_profiles", "disable", ONOFF),
    _choice("paged_state", "enable", ONOFF),
    _choice("streamingllm", "disable", ONOFF),
    _choice("norm_quant_fusion", "disable", ONOFF, "off unless Llama in NVFP4"),
    _choice("reduce_fusion", "disable", ONOFF, "off unless tp > 1 and Llama, Gemma2 or Medusa architecture"),
    _choice("user_buffer", "disable", ONOFF, "off without reduce_fusion"),
    _choice("use_fused_mlp", "enable", ONOFF, "off for quantisations other than FP8"),
    _choice("pp_reduce_scatter", "disable", ONOFF),
)

OPTIONS: dict[str, Option] = {option.name: option for option in (*GENERAL, *PLUGINS)}


def value_problem(option: Option, value: str) -> str | None:
    """Why the builder's parser would refuse `value`, None when it takes it."""
    if option.type is OptionType.SWITCH:
        return f"--{option.name} takes no value"
    if option.type is OptionType.CHOICE and value not in option.choices:
        return f"--{option.name} takes {', '.join(option.choices)}, not {value}"
    if option.type is OptionType.NUMBER and not (value.isdecimal() and int(value) >= option.least):
        return f"--{option.name} takes a whole number from {option.least}, not {value}"
    if option.name == "tokens_per_block" and int(value) & (int(value) - 1):
        return f"--{option.name} must be a power of two, not {value}"
    return None
