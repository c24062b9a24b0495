#!/usr/bin/env python3
"""Stands in for trtllm-build 1.2.1: its options, defaults, rejections and silent overrides; writes plausible engines.

The environment variable FAKE_BUILD tells it to misbehave, words separated by commas:
wrong_mode, drop_rank, truncate, config_then_die, no_config, killed, hang, cuda_oom, disk_full, slow, override,
other_version, harmless, fail, unknown_option. FAKE_BUILD_VERSION is the version it claims.
"""

import argparse
import json
import math
import os
import signal
import struct
import sys
import time
from pathlib import Path

ONOFF = ["enable", "disable"]
DTYPES = ["auto", "float16", "float32", "bfloat16", "int32", "disable"]
MODES = {
    None: 1,
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}
NUMBERS = {
    "max_batch_size": 2048, "max_input_len": 1024, "max_seq_len": None, "max_beam_width": 1, "max_num_tokens": 8192,
    "opt_num_tokens": None, "max_encoder_input_len": 1024, "max_prompt_embedding_table_size": 0, "workers": 1,
    "max_lora_rank": 64, "max_draft_len": 0, "tokens_per_block": 32,
}  # fmt: skip
TEXTS = {
    "checkpoint_dir": None, "model_config": None, "build_config": None, "model_cls_file": None,
    "model_cls_name": None, "output_dir": "engine_outputs", "input_timing_cache": None,
    "output_timing_cache": "model.cache", "visualize_network": None,
}  # fmt: skip
SWITCHES = (
    "strip_plan", "weight_sparsity", "weight_streaming", "fast_build", "enable_debug_output", "dry_run",
    "monitor_memory", "gather_context_logits", "gather_generation_logits", "gather_all_token_logits",
)  # fmt: skip
CHOICES = {
    "kv_cache_type": (None, ["continuous", "paged", "disabled"]),
    "paged_kv_cache": (None, ONOFF),
    "profiling_verbosity": ("layer_names_only", ["layer_names_only", "detailed", "none"]),
    "log_level": ("info", ["internal_error", "error", "warning", "info", "verbose", "debug"]),
    "logits_dtype": (None, ["float16", "float32"]),
    "lora_ckpt_source": ("hf", ["hf", "nemo"]),
    "speculative_decoding_mode": (None, [mode for mode in MODES if mode]),
    "gemm_plugin": ("disable", [*DTYPES, "fp8", "nvfp4"]),
    "gemm_swiglu_plugin": ("disable", ["fp8", "disable"]),
    "low_latency_gemm_plugin": ("disable", ["fp8", "disable"]),
    "low_latency_gemm_swiglu_plugin": ("disable", ["fp8", "disable"]),
    "gemm_allreduce_plugin": ("disable", ["float16", "bfloat16", "disable"]),
}
TYPED_PLUGINS = {
    "bert_attention_plugin": "auto", "gpt_attention_plugin": "auto", "fp8_rowwise_gemm_plugin": "disable",
    "lora_plugin": "disable", "moe_plugin": "auto", "mamba_conv1d_plugin": "auto", "nccl_plugin": "auto",
}  # fmt: skip
FLAG_PLUGINS = {
    "dora_plugin": "disable", "context_fmha": "enable", "bert_context_fmha_fp32_acc": "disable",
    "remove_input_padding": "enable", "use_paged_context_fmha": "enable", "use_fp8_context_fmha": "enable",
    "fuse_fp4_quant": "disable", "multiple_profiles": "disable", "paged_state": "enable", "streamingllm": "disable",
    "norm_quant_fusion": "disable", "reduce_fusion": "disable", "user_buffer": "disable", "use_fused_mlp": "enable",
    "pp_reduce_scatter": "disable",
}  # fmt: skip


def parser():
    """The options, with the real names, types and defaults."""
    result = argparse.ArgumentParser(prog="trtllm-build", allow_abbrev=False)
    for name, default in NUMBERS.items():
        aliases = {
            "max_seq_len": ["--max_decoder_seq_len"],
            "max_prompt_embedding_table_size": ["--max_multimodal_len"],
        }
        result.add_argument(f"--{name}", *aliases.get(name, []), type=int, default=default)
    for name, default in TEXTS.items():
        result.add_argument(f"--{name}", default=default)
    for name in SWITCHES:
        result.add_argument(f"--{name}", action="store_true")
    for name, (default, choices) in CHOICES.items():
        result.add_argument(f"--{name}", default=default, choices=choices)
    for name, default in TYPED_PLUGINS.items():
        result.add_argument(f"--{name}", default=default, choices=DTYPES)
    for name, default in FLAG_PLUGINS.items():
        result.add_argument(f"--{name}", default=default, choices=ONOFF)
    result.add_argument("--lora_dir", nargs="+")
    result.add_argument("--lora_target_modules", nargs="+")
    return result


def say(words):
    print(f"[11/30/2026-09:00:00] [TRT-LLM] {words}", flush=True)


def build_sizes(arguments, config):
    """max_seq_len, max_num_tokens and max_draft_len as the builder stores them."""
    mode = arguments.speculative_decoding_mode
    seq_len = arguments.max_seq_len or config.get("max_position_embeddings") or 2048
    draft = arguments.max_draft_len or (config.get("max_draft_len", 0) if mode in ("medusa", "eagle") else 0)
    tokens = arguments.max_num_tokens
    if mode is not None:
        say(f"[W] Increasing max_seq_len ({seq_len}) by max_draft_len ({draft}) to account for speculation")
        seq_len += draft + (config["num_eagle_layers"] if mode == "eagle" else 0)
        tokens = max(tokens, arguments.max_batch_size * (draft + 1))
    if tokens > seq_len * arguments.max_batch_size:
        tokens = seq_len * arguments.max_batch_size
    return seq_len, max(tokens, arguments.tokens_per_block), draft


def reject(arguments, config, draft):
    """The rejections of build.py, builder.py and plugin.py, with the exceptions they raise."""
    mode, architecture = arguments.speculative_decoding_mode, config["architecture"]
    fp8 = config.get("quantization", {}).get("quant_algo") == "FP8"
    swiglu = "fp8" in (arguments.gemm_swiglu_plugin, arguments.low_latency_gemm_swiglu_plugin)
    known = ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "QWenForCausalLM", "Qwen2ForCausalLM",
             "Qwen3ForCausalLM", "MedusaForCausalLM", "EagleForCausalLM")  # fmt: skip
    assert architecture in known, f"Unsupported model architecture: {architecture}"
    assert arguments.streamingllm != "enable", "StreamingLLM is no longer supported"
    assert arguments.pp_reduce_scatter != "enable" or architecture.startswith("Mixtral"), "PP reduce scatter is only"
    assert mode != "eagle" or arguments.max_batch_size <= 512, "Max batch size > 512 is not supported for EAGLE"
    assert mode != "eagle" or draft <= 256, "Max draft len > 256 is not supported for EAGLE"
    assert mode != "eagle" or config["mapping"].get("pp_size", 1) == 1, "Pipeline parallelism is not supported in EAGLE"
    padded = arguments.remove_input_padding == "disable" or arguments.context_fmha == "disable"
    assert not padded or arguments.max_input_len, "padding removal and fMHA aren't both enabled, max_input_len"
    if arguments.gather_context_logits and draft:
        raise RuntimeError("Gather context logits is not support with draft len > 0.")
    if arguments.multiple_profiles == "enable" and arguments.opt_num_tokens is not None:
        raise RuntimeError("multiple_profiles is enabled, while opt_num_tokens is set.")
    if swiglu and arguments.use_fused_mlp == "disable":
        raise RuntimeError("GemmSwiGLU plugin requires --use_fused_mlp flag")
    if swiglu and not fp8:
        raise RuntimeError("GemmSwiGLU plugin currently has limited support: fp8 only,")


def stored_plugins(arguments, config):
    """PluginConfig with the silent overrides applied."""
    quantisation = config.get("quantization", {})
    fp8, kv_fp8 = quantisation.get("quant_algo") == "FP8", quantisation.get("kv_cache_quant_algo") == "FP8"
    stored = {name: getattr(arguments, name) == "enable" for name in FLAG_PLUGINS}
    typed = [*TYPED_PLUGINS, *(name for name in CHOICES if name.endswith("plugin"))]
    stored |= {name: None if getattr(arguments, name) == "disable" else getattr(arguments, name) for name in typed}
    fuses = config["mapping"].get("tp_size", 1) > 1
    fuses &= config["architecture"] in ("LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM")
    stored["reduce_fusion"] &= fuses
    stored["user_buffer"] &= stored["reduce_fusion"]
    stored["norm_quant_fusion"] = False
    if kv_fp8 and not fp8:
        stored["use_paged_context_fmha"] = False
    if arguments.speculative_decoding_mode == "eagle":
        stored["use_paged_context_fmha"] = True
    stored["use_fp8_context_fmha"] = fp8 and (kv_fp8 or not stored["use_paged_context_fmha"])
    return {
        **stored,
        "dtype": config["dtype"],
        "tokens_per_block": arguments.tokens_per_block,
        "paged_kv_cache": arguments.kv_cache_type in (None, "paged"),
        "manage_weights": arguments.fast_build,
    }


def engine_config(arguments, config, faults):
    """The emitted config.json."""
    seq_len, tokens, draft = build_sizes(arguments, config)
    reject(arguments, config, draft)
    mode = MODES[arguments.speculative_decoding_mode]
    plugins = stored_plugins(arguments, config)
    if "wrong_mode" in faults:
        mode = 1
    if "override" in faults:
        plugins["use_paged_context_fmha"] = not plugins["use_paged_context_fmha"]
    pretrained = {**config, "logits_dtype": arguments.logits_dtype or config.get("logits_dtype", "float32")}
    return {
        "version": "1.1.0" if "other_version" in faults else os.environ.get("FAKE_BUILD_VERSION", "1.2.1"),
        "pretrained_config": pretrained,
        "build_config": {
            "max_input_len": arguments.max_input_len, "max_seq_len": seq_len, "opt_batch_size": 8,
            "max_batch_size": arguments.max_batch_size, "max_beam_width": arguments.max_beam_width,
            "max_num_tokens": tokens, "opt_num_tokens": arguments.opt_num_tokens or arguments.max_batch_size,
            "max_prompt_embedding_table_size": 0, "kv_cache_type": (arguments.kv_cache_type or "paged").upper(),
            "gather_context_logits": arguments.gather_context_logits,
            "gather_generation_logits": arguments.gather_generation_logits, "strongly_typed": True,
            "profiling_verbosity": arguments.profiling_verbosity, "max_draft_len": draft,
            "speculative_decoding_mode": mode, "plugin_config": plugins,
        },
    }  # fmt: skip


def rank_bytes(path):
    """Size of a checkpoint file by its header, so that a file with holes counts whole."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return max(ends, default=0)


def write_plan(path, size, faults):
    """A plan of the right size, with holes: magic bytes, then nothing."""
    if "disk_full" in faults:
        print("terminate called: write failed: No space left on device", file=sys.stderr, flush=True)
        sys.exit(1)
    with path.open("wb") as file:
        file.write(b"ftrt" + struct.pack("<Q", size))
        file.truncate(size // 8 if "truncate" in faults else size)


def build_rank(arguments, config, rank, faults):
    """Load, build and serialise one rank."""
    source = Path(arguments.checkpoint_dir) / f"rank{rank}.safetensors"
    assert source.is_file()
    say(f"[I] Loading weights from checkpoint rank {rank}")
    if "cuda_oom" in faults:
        raise RuntimeError("CUDA out of memory. Tried to allocate 16.00 GiB")
    say("[I] Build TensorRT engine Unnamed Network 0")
    for layer in range(config["num_hidden_layers"]):
        if "slow" in faults:
            time.sleep(0.05)
        say(f"[V] transformer/layers/{layer}/attention")
    if "killed" in faults and rank == config["mapping"]["world_size"] - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in faults:
        time.sleep(3600)
    if not ("drop_rank" in faults and rank == config["mapping"]["world_size"] - 1):
        write_plan(Path(arguments.output_dir) / f"rank{rank}.engine", math.ceil(rank_bytes(source) * 1.02), faults)
        say(f"[I] Engine serialized. Total time: 00:00:0{rank % 10}")


def main():
    """Parse, build each rank, write config.json as rank 0 does."""
    faults = {word for word in os.environ.get("FAKE_BUILD", "").split(",") if word}
    options = parser()
    if "unknown_option" in faults and len(sys.argv) > 2:
        options.error("unrecognized arguments: --nccl_plugin auto")
    arguments = options.parse_args()
    config = json.loads((Path(arguments.checkpoint_dir) / "config.json").read_text())
    output = Path(arguments.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    if "harmless" in faults:
        say("[W] Could not read timing cache, ignoring it")
    if "fail" in faults:
        raise RuntimeError("Engine building failed, please check the error log.")
    emitted = engine_config(arguments, config, faults)
    if "no_config" not in faults:
        (output / "config.json").write_text(json.dumps(emitted, indent=2))
    if "config_then_die" in faults:
        print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
        return 0
    for rank in range(config["mapping"]["world_size"]):
        build_rank(arguments, config, rank, faults)
    Path(arguments.output_timing_cache).write_bytes(b"timing")
    say("[I] Build phase peak memory: 2048.00 MB, children: 16.00 MB")
    say("[I] Total time of building all engines: 00:00:01")
    return 0


if __name__ == "__main__":
    sys.exit(main())
