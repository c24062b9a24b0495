"""The parameters of the models of a repository: which there are, which values they take, which must be there.

The C++ backend ignores unknown keys and reads half of a broken number, so everything is checked before it is written.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draftyard.nouns.errors import Problem
from draftyard.nouns.repository import ModelName


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


def _one_of(*words: str) -> Callable[[str], bool]:
    return lambda text: text in words


@dataclass(frozen=True, slots=True)
class ParameterRule:
    """Which values a parameter takes, in words and as a check; `required` must be there, `may_be_empty` too as ""."""

    allowed: str
    accepts: Callable[[str], bool]
    required: bool = False
    may_be_empty: bool = False


FLAG = ParameterRule("true or false", _one_of("true", "false"))
COUNT = ParameterRule("a whole number from 1", _matches(r"[1-9]\d*"))
WHOLE = ParameterRule("a whole number from 0", _matches(r"0|[1-9]\d*"))
COUNTS = ParameterRule("whole numbers separated by commas", _matches(r"\d+(,\d+)*"))
SHARE = ParameterRule("a number from 0 to 1", _matches(r"0(\.\d+)?|1(\.0+)?"))
SECONDS = ParameterRule("seconds above 0", _matches(r"(?!0+(\.0+)?$)\d+(\.\d+)?"))
NAME = ParameterRule("the name of a model", _matches(r"[a-z0-9_]+"))
WORDS = ParameterRule("names separated by commas", _matches(r"[A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*"))
# Relative: the server's working directory is the repository, wherever that is mounted.
PATH = ParameterRule("a path inside the repository", _matches(r"(?!\.\.(/|$))[^/\s$][^\s$]*"))
CHOICES = ParameterRule("node paths such as {0}, {0, 0}, {1}", _matches(r"\{\d+(, \d+)*\}(, \{\d+(, \d+)*\})*"))


def _needed(rule: ParameterRule) -> ParameterRule:
    return ParameterRule(rule.allowed, rule.accepts, required=True)


def _present(rule: ParameterRule) -> ParameterRule:
    return ParameterRule(rule.allowed, rule.accepts, required=True, may_be_empty=True)


def _words(*words: str, required: bool = False) -> ParameterRule:
    return ParameterRule(f"one of {', '.join(words)}", _one_of(*words), required)


_GUEST: Mapping[str, ParameterRule] = {"tokenizer_dir": _needed(PATH)}
_ENGINE: Mapping[str, ParameterRule] = {
    "gpt_model_type": _words("inflight_fused_batching", "inflight_batching", required=True),
    "gpt_model_path": _needed(PATH),
    "max_beam_width": COUNT,
    "max_tokens_in_paged_kv_cache": COUNT,
    "max_attention_window_size": COUNTS,
    "sink_token_length": WHOLE,
    "batch_scheduler_policy": _words("guaranteed_no_evict", "max_utilization"),
    "kv_cache_free_gpu_mem_fraction": SHARE,
    "kv_cache_host_memory_bytes": WHOLE,
    "kv_cache_onboard_blocks": FLAG,
    "exclude_input_in_output": FLAG,
    "cancellation_check_period_ms": COUNT,
    "stats_check_period_ms": COUNT,
    "iter_stats_max_iterations": WHOLE,
    "request_stats_max_iterations": WHOLE,
    "enable_kv_cache_reuse": FLAG,
    "normalize_log_probs": FLAG,
    "enable_chunked_context": FLAG,
    "gpu_device_ids": COUNTS,
    "num_nodes": COUNT,
    "decoding_mode": _words(
        "top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"
    ),
    "lookahead_window_size": COUNT,
    "lookahead_ngram_size": COUNT,
    "lookahead_verification_set_size": WHOLE,
    "medusa_choices": CHOICES,
    "eagle_choices": CHOICES,
    "gpu_weights_percent": SHARE,
    "enable_context_fmha_fp32_acc": FLAG,
    "multi_block_mode": FLAG,
    "cuda_graph_mode": FLAG,
    "cuda_graph_cache_size": WHOLE,
    # Read without a guard by the C++ backend: the load fails when one of the three is absent.
    "tokenizer_dir": _needed(PATH),
    "guided_decoding_backend": _present(_words("xgrammar")),
    "xgrammar_tokenizer_info_path": _present(PATH),
}
_TABLES: Mapping[str, Mapping[str, ParameterRule]] = {
    ModelName.PREPROCESSING: {
        **_GUEST,
        "add_special_tokens": FLAG,
        "max_input_len": _needed(COUNT),
        "max_seq_len": _needed(COUNT),
        "end_ids": COUNTS,
        "vocab_size": _needed(COUNT),
    },
    ModelName.ENGINE: _ENGINE,
    ModelName.DRAFT_ENGINE: _ENGINE,
    ModelName.POSTPROCESSING: {**_GUEST, "skip_special_tokens": FLAG},
    ModelName.ENSEMBLE: {},
    ModelName.ENTRY: {
        **_GUEST,
        "accumulate_tokens": _words("false"),  # text_output is the delta; the whole text so far would double it
        "tensorrt_llm_model_name": _needed(NAME),
        "tensorrt_llm_draft_model_name": NAME,
        "max_draft_len": COUNT,
        "policy_file": PATH,
        "skip_special_tokens": FLAG,
        "end_ids": COUNTS,
        "engine_emits_end_id": FLAG,
        "default_timeout_s": _needed(SECONDS),
        "stall_timeout_s": SECONDS,
        "max_streams": _needed(COUNT),
        "cancellation_check_period_ms": COUNT,
        "allowed_request_parameters": WORDS,
    },
}


def known_parameters(model: str) -> tuple[str, ...]:
    """Every key that a model of this name knows, sorted; KeyError for another model."""
    return tuple(sorted(_TABLES[model]))


def parameter_problems(model: str, parameters: Mapping[str, str]) -> tuple[Problem, ...]:
    """Everything wrong with the parameters of one model; KeyError for a model that is none of ours."""
    rules = _TABLES[model]
    problems = []
    for key, value in parameters.items():
        if key not in rules:
            near = difflib.get_close_matches(key, rules, 1)
            hint = f"did you mean {near[0]}?" if near else f"{model} knows: {', '.join(sorted(rules)) or 'none'}"
            problems.append(Problem(f"{model}: unknown parameter {key}", hint))
        elif not (rules[key].accepts(value) or (value == "" and rules[key].may_be_empty)):
            problems.append(Problem(f"{model}: parameter {key} is {value!r}", f"give {rules[key].allowed}"))
    missing = sorted(key for key, rule in rules.items() if rule.required and key not in parameters)
    problems.extend(Problem(f"{model}: parameter {key} is missing", f"give {rules[key].allowed}") for key in missing)
    return tuple(problems)
