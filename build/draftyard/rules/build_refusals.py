"""What `trtllm-build` and the runtime would refuse, or silently get wrong, found before a process starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draftyard.nouns.engine_build import BuildMode, EngineBuild
from draftyard.nouns.errors import Problem
from draftyard.rules.build_argv import REDUCE_FUSION_ARCHITECTURES, build_options, plugin_options
from draftyard.rules.build_options import OPTIONS, PLUGINS, value_problem

EAGLE_LARGEST_BATCH = 512
EAGLE_LONGEST_DRAFT = 256
# decoderXQARunner.cpp, kernelUtils.cpp of the 1.2 line: precompiled multi-query kernels, and those compiled on Hopper.
PRECOMPILED_HEAD_SIZES = (64, 128)
PRECOMPILED_BLOCKS = (32, 64, 128)
HOPPER_BLOCKS = (8, 16, 32, 64, 128)
# What a recipe may set by itself; everything else follows from it.
FREE_OPTIONS = (*(option.name for option in PLUGINS), "opt_num_tokens", "profiling_verbosity")


@dataclass(frozen=True, slots=True)
class BuildRule:
    """One condition under which a build is refused; `options` are the command line's, by name."""

    name: str
    applies: Callable[[EngineBuild, Mapping[str, str]], bool]
    message: str
    hint: str


def build_problems(build: EngineBuild) -> list[Problem]:
    """Everything that is wrong with a request, at once; empty when the builder takes it and nothing is overridden."""
    problems = override_problems(build)
    if problems:
        return problems
    options = build_options(build)
    problems = [Problem(rule.message, rule.hint) for rule in RULES if rule.applies(build, options)]
    return [*problems, *_size_problems(build), *tree_kernel_problems(build)]


def override_problems(build: EngineBuild) -> list[Problem]:
    """Options of the recipe that the builder does not know, or with values that it would not take."""
    problems = []
    for name, value in build.overrides:
        if name not in OPTIONS:
            problems.append(
                Problem(f"trtllm-build 1.2 has no option --{name}", "see docs/trtllm-build.md for the names")
            )
            continue
        if name not in FREE_OPTIONS:
            problems.append(Problem(f"--{name} cannot be set in a recipe", "remove it: it follows from the recipe"))
            continue
        words = value_problem(OPTIONS[name], value)
        if words:
            problems.append(Problem(words, "correct the option in the recipe"))
    return problems


def tree_kernel_problems(build: EngineBuild) -> list[Problem]:
    """Why no multi-query attention kernel verifies a tree on Hopper; empty when one does or none is needed.

    Such an engine builds and loads, and aborts at its first step: "No available XQA kernels are found for speculative
    decoding mode." (TensorRT-LLM#2879, #6067).
    """
    if not build.mode.needs_tree_kernel:
        return []
    heads, kv_heads, head_size = (build.integer(key) for key in _HEAD_KEYS)
    hint = "use an external draft or n-gram lookup for this model: they need no tree kernel"
    if heads % kv_heads:
        return [Problem(f"{heads} heads are no multiple of {kv_heads} KV heads: no kernel verifies a tree", hint)]
    group, block = heads // kv_heads, build.tokens_per_block
    if build.checkpoint.get("dtype") not in ("float16", "bfloat16"):
        return [Problem(f"trees are verified in float16 or bfloat16, not {build.checkpoint.get('dtype')}", hint)]
    problems = []
    if build.kv_cache_fp8 and 64 % group == 0:
        if head_size % 16 or not 16 <= head_size <= 256 or group > 32:
            problems.append(Problem(f"no kernel verifies a tree with head size {head_size}, group {group}", hint))
        blocks: tuple[int, ...] = HOPPER_BLOCKS
    else:
        if head_size not in PRECOMPILED_HEAD_SIZES or (build.kv_cache_fp8 and head_size != 128):
            problems.append(Problem(f"no kernel verifies a tree with head size {head_size}", hint))
        if group & (group - 1):
            words = f"no kernel verifies a tree with {group} query heads to a KV head (a power of two is needed)"
            problems.append(Problem(words, hint))
        blocks = PRECOMPILED_BLOCKS
    if block not in blocks:
        listed = ", ".join(str(size) for size in blocks)
        problems.append(Problem(f"trees need tokens_per_block {listed}, not {block}", "leave tokens_per_block at 32"))
    return problems


def build_notes(build: EngineBuild) -> tuple[str, ...]:
    """What a person should know and no rule refuses."""
    notes = []
    if build.integer("head_size") not in (64, 128, 256):
        notes.append(
            f"head size {build.integer('head_size')} is unusual for paged context attention: compare the engine's "
            "output with the reference lane (TensorRT-LLM#2255)"
        )
    if build.tp_size > 1 and build.architecture not in REDUCE_FUSION_ARCHITECTURES:
        notes.append(f"the builder has no fused all-reduce for {build.architecture}")
    if build.mode is BuildMode.MEDUSA:
        notes.append("Medusa engines accept greedily, whatever sampling a request asks for")
        if build.max_batch_size > 8:
            notes.append(f"Medusa is meant for small batches; max_batch_size is {build.max_batch_size}")
    for name, value in build.overrides:
        own = plugin_options(build).get(name)
        if own is not None and own != value:
            notes.append(f"--{name} {value} by the recipe, in place of {own}")
    return tuple(notes)


_HEAD_KEYS = ("num_attention_heads", "num_key_value_heads", "head_size")


def _off(name: str) -> Callable[[EngineBuild, Mapping[str, str]], bool]:
    return lambda build, options: options.get(name) == "disable"


def _drops_fusion(build: EngineBuild, options: Mapping[str, str]) -> bool:
    fits = build.tp_size > 1 and build.architecture in REDUCE_FUSION_ARCHITECTURES
    return options["reduce_fusion"] == "enable" and not fits


def _swiglu(options: Mapping[str, str]) -> bool:
    names = ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin")
    return any(options.get(name, "disable") != "disable" for name in names)


# The builder's own rejections (commands/build.py, builder.py, plugin.py of the 1.2 line), and its silent overrides:
# an option that would be changed without a word is refused here, so that what was asked is what is built.
RULES: tuple[BuildRule, ...] = (
    BuildRule(
        "several profiles against one optimum",
        lambda build, options: options["multiple_profiles"] == "enable" and "opt_num_tokens" in options,
        "opt_num_tokens and multiple_profiles exclude each other",
        "remove opt_num_tokens, or set multiple_profiles to disable",
    ),
    BuildRule(
        "tokens without context attention",
        _off("context_fmha"),
        "context_fmha must be on: max_num_tokens, KV reuse and speculation depend on it",
        "remove context_fmha from the options",
    ),
    BuildRule(
        "padding",
        _off("remove_input_padding"),
        "remove_input_padding must be on for in-flight batching",
        "remove it from the options",
    ),
    BuildRule(
        "attention plugin",
        _off("gpt_attention_plugin"),
        "gpt_attention_plugin must be on for in-flight batching",
        "remove it from the options",
    ),
    BuildRule(
        "speculation without paged context attention",
        lambda build, options: build.mode is not BuildMode.NONE and options["use_paged_context_fmha"] == "disable",
        "speculation verifies drafts with paged context attention, which is off",
        "remove use_paged_context_fmha from the options; with an FP8 KV cache the weights must be FP8 too",
    ),
    BuildRule(
        "FP8 cache without FP8 weights",
        lambda build, options: build.kv_cache_fp8 and not build.weights_fp8,
        "an FP8 KV cache with 16-bit weights loses paged context attention, and with it KV reuse",
        "choose fp8 weights, or a KV cache of the weights' type",
    ),
    BuildRule(
        "FP8 context attention",
        lambda build, options: (
            (options["use_fp8_context_fmha"] == "enable") != (build.weights_fp8 and build.kv_cache_fp8)
        ),
        "use_fp8_context_fmha follows from the precision: the builder would change it silently",
        "remove use_fp8_context_fmha from the options",
    ),
    BuildRule(
        "fused reduction",
        _drops_fusion,
        "reduce_fusion would be dropped silently: it needs tp > 1 and a Llama, Gemma2 or Medusa architecture",
        "remove reduce_fusion from the options",
    ),
    BuildRule(
        "user buffers",
        lambda build, options: options["user_buffer"] == "enable" and options["reduce_fusion"] == "disable",
        "user_buffer would be dropped silently: it needs reduce_fusion",
        "remove user_buffer from the options",
    ),
    BuildRule(
        "norm fusion",
        lambda build, options: options.get("norm_quant_fusion") == "enable",
        "norm_quant_fusion exists for NVFP4 alone, which Hopper does not have",
        "remove it from the options",
    ),
    BuildRule(
        "SwiGLU plugin without FP8",
        lambda build, options: _swiglu(options) and not build.weights_fp8,
        "the SwiGLU plugins multiply FP8 alone",
        "remove gemm_swiglu_plugin and low_latency_gemm_swiglu_plugin, or choose fp8",
    ),
    BuildRule(
        "SwiGLU plugin without a fused MLP",
        lambda build, options: _swiglu(options) and options["use_fused_mlp"] == "disable",
        "the SwiGLU plugins need use_fused_mlp",
        "remove use_fused_mlp from the options",
    ),
    BuildRule(
        "two FP8 products",
        lambda build, options: options.get("low_latency_gemm_plugin") == "fp8" and options["gemm_plugin"] == "fp8",
        "gemm_plugin fp8 and low_latency_gemm_plugin fp8 exclude each other",
        "choose one",
    ),
    BuildRule(
        "streaming attention",
        lambda build, options: options.get("streamingllm") == "enable",
        "StreamingLLM is no longer built since TensorRT-LLM 1.1",
        "remove streamingllm from the options",
    ),
    BuildRule(
        "scattered pipeline",
        lambda build, options: (
            options.get("pp_reduce_scatter") == "enable" and build.architecture != "MixtralForCausalLM"
        ),
        "pp_reduce_scatter is built for Mixtral alone",
        "remove pp_reduce_scatter from the options",
    ),
    BuildRule(
        "EAGLE batch",
        lambda build, options: build.mode is BuildMode.EAGLE and build.max_batch_size > EAGLE_LARGEST_BATCH,
        f"EAGLE engines take a max_batch_size of {EAGLE_LARGEST_BATCH} at most",
        "lower limits.max_batch_size",
    ),
    BuildRule(
        "EAGLE draft",
        lambda build, options: build.mode is BuildMode.EAGLE and build.max_draft_len > EAGLE_LONGEST_DRAFT,
        f"EAGLE engines verify {EAGLE_LONGEST_DRAFT} drafted tokens at most",
        "lower max_draft_len",
    ),
    BuildRule(
        "EAGLE pipeline",
        lambda build, options: build.mode is BuildMode.EAGLE and build.pp_size > 1,
        "EAGLE engines have no pipeline parallelism",
        "set pp_size to 1",
    ),
    BuildRule(
        "EAGLE in FP8",
        lambda build, options: build.mode is BuildMode.EAGLE and build.weights_fp8,
        "the EAGLE route has no FP8",
        "choose fp16 or bf16 for EAGLE, or Medusa or an external draft with fp8",
    ),
    BuildRule(
        "Medusa vocabulary",
        lambda build, options: build.mode is BuildMode.MEDUSA and build.integer("vocab_size") % build.tp_size != 0,
        "Medusa's vocabulary projection is not padded: vocab_size must be a multiple of tp_size",
        "choose a tp_size that divides vocab_size",
    ),
    BuildRule(
        "no draft",
        lambda build, options: build.mode is not BuildMode.NONE and build.max_draft_len < 1,
        "a speculation mode without drafted tokens: the runtime refuses to draft",
        "set max_draft_len",
    ),
    BuildRule(
        "another draft than the checkpoint's",
        lambda build, options: (
            build.mode in (BuildMode.MEDUSA, BuildMode.EAGLE)
            and build.checkpoint.get("max_draft_len") != build.max_draft_len
        ),
        "the network uses the checkpoint's max_draft_len, the sizes the command line's: they must be equal",
        "convert the checkpoint again with this max_draft_len",
    ),
    BuildRule(
        "heads without their mode",
        lambda build, options: _mode_of(build.architecture) not in (None, build.mode),
        "this checkpoint's heads would be ignored: a Medusa or EAGLE checkpoint needs its own mode",
        "choose the speculator that the checkpoint was made for",
    ),
    BuildRule(
        "a mode without heads",
        lambda build, options: (
            build.mode in (BuildMode.MEDUSA, BuildMode.EAGLE) and _mode_of(build.architecture) is not build.mode
        ),
        "the checkpoint holds no heads of this kind",
        "convert the target together with its heads",
    ),
)


def _mode_of(architecture: str) -> BuildMode | None:
    return {"MedusaForCausalLM": BuildMode.MEDUSA, "EagleForCausalLM": BuildMode.EAGLE}.get(architecture)


def _size_problems(build: EngineBuild) -> list[Problem]:
    problems = []
    if build.max_input_len >= build.max_seq_len:
        words = f"max_input_len {build.max_input_len} leaves no room for output in max_seq_len {build.max_seq_len}"
        problems.append(Problem(words, "lower limits.max_input_len"))
    if build.integer("num_attention_heads") % build.tp_size:
        problems.append(
            Problem(
                f"{build.integer('num_attention_heads')} heads cannot be shared by {build.tp_size} ranks", "lower tp"
            )
        )
    return problems
