"""Decides every line of a Triton repository: a plan becomes the configurations of five models."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem, raise_problems
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.recipe import Limits, Serving, Speculator
from draftyard.nouns.repository import (
    EnsembleStep,
    LogitsType,
    ModelConfig,
    ModelName,
    Queue,
    Repository,
    RepositoryPlan,
)
from draftyard.rules.triton_tensors import (
    ENGINE_INPUTS,
    ENGINE_OUTPUTS,
    POSTPROCESSING_INPUTS,
    POSTPROCESSING_OUTPUTS,
    PREPROCESSING_INPUTS,
    PREPROCESSING_OUTPUTS,
    model_tensors,
)

# Places inside the repository; the server's working directory is the repository.
TOKENIZER_PLACE = "tokenizer"
ENGINE_PLACE = "engines/tensorrt_llm"
ENGINE_BACKEND = "tensorrtllm"
GUEST_BACKEND = "python"
# The share of free memory only caps what the number of tokens asks for; the backend takes the smaller of the two.
FREE_MEMORY_SHARE = "0.9"


def repository_parameters(
    *,
    lane: Lane,
    limits: Limits,
    serving: Serving,
    speculator: Speculator | None,
    kv_cache_tokens: int,
    end_ids: tuple[int, ...],
    vocab_size: int,
    logits_dtype: str,
    guests_digest: str,
) -> dict[str, Json]:
    """The parameters of a repository step: `lane` and `plan`, as JSON.

    `logits_dtype` is the word of the engine's config. Failure when this lane's repository cannot carry the speculator
    or the backend cannot return such logits.
    """
    problems = []
    if lane is Lane.LLMAPI or (lane is Lane.TENSORRT and speculator is not None):
        kind = "no speculator" if speculator is None else speculator.kind.value
        problems.append(
            Problem(f"no repository is made for lane {lane} with {kind}", "use the reference lane, or no speculator")
        )
    if logits_dtype not in [kind.value for kind in LogitsType]:
        known = " or ".join(kind.value for kind in LogitsType)
        problems.append(Problem(f"logits of type {logits_dtype} cannot be served", f"build with logits in {known}"))
    raise_problems(problems)
    plan = RepositoryPlan(
        lane=lane,
        speculator=SpeculatorKind.NONE if speculator is None else speculator.kind,
        max_draft_len=0 if speculator is None else speculator.max_draft_len,
        max_batch_size=limits.max_batch_size,
        max_input_len=limits.max_input_len,
        max_seq_len=limits.max_seq_len,
        kv_cache_tokens=kv_cache_tokens,
        max_queue_size=serving.max_queue_size,
        default_timeout_s=serving.default_timeout_s,
        end_ids=end_ids,
        vocab_size=vocab_size,
        logits_type=LogitsType(logits_dtype),
        guests_digest=guests_digest,
    )
    return {"lane": lane.value, "plan": plan.model_dump(mode="json")}


def draw_repository(plan: RepositoryPlan) -> Repository:
    """The configurations of the five models."""
    return Repository((_preprocessing(plan), _engine(plan), _postprocessing(plan), _ensemble(plan), _entry(plan)))


def _parameters(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(values.items()))


def _end_ids(plan: RepositoryPlan) -> dict[str, str]:
    """The first one is the engine's `end_id`, the others travel as stop words."""
    return {"end_ids": ",".join(str(end_id) for end_id in plan.end_ids)} if plan.end_ids else {}


def _queue(plan: RepositoryPlan) -> Queue:
    """A default time-out above 0, because with 0 the server ignores the one that a request asks for."""
    return Queue(plan.max_batch_size, plan.max_queue_size, max(1, round(plan.default_timeout_s * 1e6)))


def _preprocessing(plan: RepositoryPlan) -> ModelConfig:
    parameters = {
        "tokenizer_dir": TOKENIZER_PLACE,
        "add_special_tokens": "true",
        "max_input_len": str(plan.max_input_len),
        "max_seq_len": str(plan.max_seq_len),
        "vocab_size": str(plan.vocab_size),
        **_end_ids(plan),
    }
    return ModelConfig(
        name=ModelName.PREPROCESSING.value,
        backend=GUEST_BACKEND,
        max_batch_size=plan.max_batch_size,
        tensors=model_tensors(ModelName.PREPROCESSING, plan.logits_type),
        instance_count=1,
        batching=True,
        queue=_queue(plan),
        parameters=_parameters(parameters),
    )


def _engine(plan: RepositoryPlan) -> ModelConfig:
    parameters = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": ENGINE_PLACE,
        "max_beam_width": "1",
        "max_tokens_in_paged_kv_cache": str(plan.kv_cache_tokens),
        "kv_cache_free_gpu_mem_fraction": FREE_MEMORY_SHARE,
        "batch_scheduler_policy": "guaranteed_no_evict",
        "exclude_input_in_output": "true",
        "enable_kv_cache_reuse": "true",
        "normalize_log_probs": "true",
        "enable_chunked_context": "false",
        "cancellation_check_period_ms": "100",
        "stats_check_period_ms": "100",
        "tokenizer_dir": TOKENIZER_PLACE,
        "guided_decoding_backend": "",
        "xgrammar_tokenizer_info_path": "",
    }
    return ModelConfig(
        name=ModelName.ENGINE.value,
        backend=ENGINE_BACKEND,
        max_batch_size=plan.max_batch_size,
        tensors=model_tensors(ModelName.ENGINE, plan.logits_type),
        decoupled=plan.decoupled,
        instance_count=1,
        batching=True,
        queue=_queue(plan),
        parameters=_parameters(parameters),
    )


def _postprocessing(plan: RepositoryPlan) -> ModelConfig:
    """One instance: with two, the responses of one stream overtake each other in the ensemble."""
    return ModelConfig(
        name=ModelName.POSTPROCESSING.value,
        backend=GUEST_BACKEND,
        max_batch_size=plan.max_batch_size,
        tensors=model_tensors(ModelName.POSTPROCESSING, plan.logits_type),
        instance_count=1,
        batching=True,
        parameters=_parameters({"tokenizer_dir": TOKENIZER_PLACE, "skip_special_tokens": "true"}),
    )


def _ensemble(plan: RepositoryPlan) -> ModelConfig:
    steps = (
        _step(ModelName.PREPROCESSING, PREPROCESSING_INPUTS, PREPROCESSING_OUTPUTS),
        _step(ModelName.ENGINE, ENGINE_INPUTS, ENGINE_OUTPUTS),
        _step(ModelName.POSTPROCESSING, POSTPROCESSING_INPUTS, POSTPROCESSING_OUTPUTS),
    )
    return ModelConfig(
        name=ModelName.ENSEMBLE.value,
        backend="",
        max_batch_size=plan.max_batch_size,
        tensors=model_tensors(ModelName.ENSEMBLE, plan.logits_type),
        steps=steps,
    )


def _step(model: ModelName, inputs: tuple[tuple[str, str], ...], outputs: tuple[tuple[str, str], ...]) -> EnsembleStep:
    return EnsembleStep(model.value, tuple(sorted(inputs)), tuple(sorted(outputs)))


def _entry(plan: RepositoryPlan) -> ModelConfig:
    """One instance serves all streams; more requests than run and wait in the engine are refused here."""
    timeout = f"{plan.default_timeout_s:.6f}".rstrip("0").rstrip(".")
    parameters = {
        "tokenizer_dir": TOKENIZER_PLACE,
        "skip_special_tokens": "true",
        "tensorrt_llm_model_name": ModelName.ENGINE.value,
        "accumulate_tokens": "false",
        "default_timeout_s": timeout,
        "max_streams": str(plan.max_batch_size + plan.max_queue_size),
        "cancellation_check_period_ms": "100",
        **_end_ids(plan),
    }
    return ModelConfig(
        name=ModelName.ENTRY.value,
        backend=GUEST_BACKEND,
        max_batch_size=plan.max_batch_size,
        tensors=model_tensors(ModelName.ENTRY, plan.logits_type),
        decoupled=plan.decoupled,
        instance_count=1,
        parameters=_parameters(parameters),
    )
