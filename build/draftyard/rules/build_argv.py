"""The command line of `trtllm-build` for one engine, and what the engine's `config.json` must say afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass

from draftyard.nouns.digest import Json
from draftyard.nouns.engine_build import BuildMode, EngineBuild
from draftyard.rules.build_options import ONOFF, PLUGINS, Option, OptionType

# The architectures for which the builder keeps reduce_fusion; for all others it is dropped without a word.
REDUCE_FUSION_ARCHITECTURES = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM")


@dataclass(frozen=True, slots=True)
class BuildPlaces:
    """Where a build reads and writes: absolute paths as the builder sees them, inside its container if it has one."""

    checkpoint: str
    output: str
    timing_cache: str


def build_argv(build: EngineBuild, places: BuildPlaces, executable: str, workers: int = 1) -> tuple[str, ...]:
    """The whole command. Every size and every option that decides bytes is given: no default is relied upon."""
    words = [executable, "--checkpoint_dir", places.checkpoint, "--output_dir", places.output]
    for name, value in build_options(build).items():
        words += [f"--{name}", value]
    # The default is a relative path, which would be written into whatever directory the builder runs in.
    return (*words, "--output_timing_cache", places.timing_cache, "--workers", str(workers), "--log_level", "info")


def build_options(build: EngineBuild) -> dict[str, str]:
    """Options that decide the engine's bytes, in the order of the command line; paths and workers apart.

    The growth of `max_seq_len` by the draft is left to the builder, which adds it to what is given; the floor of
    `max_num_tokens` is given, because the activation memory follows from it.
    """
    options = {
        "max_batch_size": str(build.max_batch_size),
        "max_input_len": str(build.max_input_len),
        "max_seq_len": str(build.max_seq_len),
        "max_num_tokens": str(step_tokens(build)),
        "max_beam_width": "1",
        "kv_cache_type": "paged",
        "logits_dtype": str(build.checkpoint.get("logits_dtype", "float32")),
    }
    if build.mode is not BuildMode.NONE:
        options |= {"speculative_decoding_mode": build.mode.value, "max_draft_len": str(build.max_draft_len)}
    return options | plugin_options(build) | dict(build.overrides)


def plugin_options(build: EngineBuild) -> dict[str, str]:
    """Plugins and fusions, each set to what the builder will really use, so that nothing is overridden silently.

    After TensorRT-LLM's build-time advice for Hopper: 16-bit products through the GEMM plugin, FP8 products through
    TensorRT's own kernels; several optimisation profiles; fused all-reduce where the architecture has it.
    """
    fuses = build.tp_size > 1 and build.architecture in REDUCE_FUSION_ARCHITECTURES
    return {
        "gpt_attention_plugin": "auto",
        "gemm_plugin": "disable" if build.weights_fp8 else "auto",
        "nccl_plugin": "auto",
        "remove_input_padding": "enable",
        "context_fmha": "enable",
        "tokens_per_block": str(build.tokens_per_block),
        "use_paged_context_fmha": onoff(uses_paged_context_fmha(build)),
        "use_fp8_context_fmha": onoff(build.weights_fp8 and build.kv_cache_fp8),
        "multiple_profiles": "enable",
        "use_fused_mlp": "enable",
        "reduce_fusion": onoff(fuses),
        "user_buffer": onoff(fuses and build.weights_fp8),
    }


def uses_paged_context_fmha(build: EngineBuild) -> bool:
    """KV reuse, chunked prompts and every speculation need it; an FP8 cache without FP8 weights cannot have it."""
    return build.weights_fp8 or not build.kv_cache_fp8


def step_tokens(build: EngineBuild) -> int:
    """`max_num_tokens`: at least one token, or a whole draft and one, of every sequence; never under one KV block.

    The builder raises it in the same way; more than a full batch of the longest sequences it would clamp.
    """
    drafted = build.max_draft_len + 1 if build.mode is not BuildMode.NONE else 1
    wanted = max(build.max_num_tokens, build.max_batch_size * drafted, build.tokens_per_block)
    return min(wanted, stored_seq_len(build) * build.max_batch_size)


def stored_seq_len(build: EngineBuild) -> int:
    """`build_config.max_seq_len` of the finished engine: with room for the draft, for EAGLE also for its layers."""
    if build.mode is BuildMode.NONE:
        return build.max_seq_len
    layers = build.integer("num_eagle_layers") if build.mode is BuildMode.EAGLE else 0
    return build.max_seq_len + build.max_draft_len + layers


def expected_build_config(build: EngineBuild) -> dict[str, Json]:
    """Fields of `build_config` that must come back exactly."""
    options = build_options(build)
    plugins: dict[str, Json] = {
        option.name: stored_plugin(option, options[option.name]) for option in PLUGINS if option.name in options
    }
    return {
        "max_batch_size": build.max_batch_size,
        "max_seq_len": stored_seq_len(build),
        "max_num_tokens": step_tokens(build),
        "max_beam_width": 1,
        "max_draft_len": build.max_draft_len if build.mode is not BuildMode.NONE else 0,
        "speculative_decoding_mode": build.mode.stored,
        "kv_cache_type": options["kv_cache_type"].upper(),
        "gather_context_logits": False,
        "gather_generation_logits": False,
        "plugin_config": plugins,
    }


def stored_plugin(option: Option, word: str) -> Json:
    """How a plugin option is spelt in the engine's config: a boolean, a number, null for a type that is off."""
    if option.type is OptionType.NUMBER:
        return int(word)
    if option.choices == ONOFF:
        return word == "enable"
    return None if word == "disable" else word


def onoff(value: bool) -> str:
    """A boolean as the builder's options spell it."""
    return "enable" if value else "disable"


def argv_text(argv: tuple[str, ...]) -> str:
    """A command over several lines, one option a line, for people and golden files."""
    lines = [argv[0]]
    for word in argv[1:]:
        if word.startswith("--"):
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines) + "\n"


def checkpoint_identity(checkpoint: Mapping[str, Json]) -> dict[str, Json]:
    """The fields of a checkpoint's config that an engine's `pretrained_config` must repeat unchanged.

    The builder adds derived keys and spells some null values out, so the whole is not compared.
    """
    keys = (
        "architecture", "dtype", "logits_dtype", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_size", "intermediate_size", "vocab_size", "max_position_embeddings",
        "norm_epsilon", "position_embedding_type", "rotary_base", "rotary_scaling", "qk_layernorm",
        "num_medusa_heads", "num_medusa_layers", "num_eagle_layers", "max_non_leaves_per_layer", "max_draft_len",
    )  # fmt: skip
    return {key: checkpoint[key] for key in keys if key in checkpoint}
