"""Decides every line of a Triton repository: a plan becomes the configurations of its models."""

from collections.abc import Mapping
from dataclasses import replace

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem, raise_problems
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.policy import Policy
from draftyard.nouns.recipe import (
    DraftTargetSpeculator,
    EagleSpeculator,
    Limits,
    LookaheadSpeculator,
    MedusaSpeculator,
    Serving,
    Speculator,
)
from draftyard.nouns.repository import (
    DecodingMode,
    EnsembleStep,
    LogitsType,
    ModelConfig,
    ModelName,
    Queue,
    Repository,
    RepositoryPlan,
    TreeSettings,
)
from draftyard.rules.trees import choices_text, resolved_tree
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
DRAFT_ENGINE_PLACE = "engines/tensorrt_llm_draft"
ENGINE_BACKEND = "tensorrtllm"
POLICY_PLACE = "policy.json"
GUEST_BACKEND = "python"
# The share of free memory only caps what the number of tokens asks for; the backend takes the smaller of the two.
FREE_MEMORY_SHARE = "0.9"
# With two engines in one server each takes its share of what is free when it loads.
SHARED_MEMORY_SHARE = "0.45"

# What TensorRT-LLM executes with its PyTorch backend alone.
_NO_ENGINE = (SpeculatorKind.NGRAM, SpeculatorKind.EAGLE3, SpeculatorKind.MTP)


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
    ranks: int = 1,
    medusa_heads: int | None = None,
    policy: Policy | None = None,
) -> dict[str, Json]:
    """The parameters of a repository step: `lane` and `plan`, as JSON.

    `logits_dtype` is the word of the engine's config, `ranks` are the engine's, `medusa_heads` those in it. Failure
    when this lane's repository cannot carry the speculator or the backend cannot return such logits.
    """
    problems = lane_problems(lane, speculator)
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
        tree=tree_settings(speculator, medusa_heads) if lane is Lane.TENSORRT else TreeSettings(),
        ranks=ranks,
        draft_ranks=_draft_ranks(lane, speculator),
        policy=policy,
        guests_digest=guests_digest,
    )
    # A repository without a policy is the same artefact, whether or not there could be one.
    return {"lane": lane.value, "plan": plan.model_dump(mode="json", exclude=None if policy else {"policy"})}


def lane_problems(lane: Lane, speculator: Speculator | None) -> list[Problem]:
    """Why no repository of a lane serves a speculator; empty when one does."""
    if lane is Lane.LLMAPI:
        return [Problem("no repository of five models is made for the llmapi lane", "use its single model")]
    if lane is Lane.TENSORRT and speculator is not None and speculator.kind in _NO_ENGINE:
        return [Problem(f"no repository is made for the tensorrt lane with {speculator.kind}", "use the llmapi lane")]
    if lane is Lane.TENSORRT and isinstance(speculator, EagleSpeculator) and speculator.dynamic_tree_max_top_k:
        return [
            Problem(
                "Triton's tensorrtllm backend cannot be told of a dynamic tree (EAGLE-2)",
                "give eagle_choices as `choices`, or leave the tree to the default",
            )
        ]
    return []


def tree_settings(speculator: Speculator | None, medusa_heads: int | None = None) -> TreeSettings:
    """What the C++ backend must be told. It auto-detects Medusa and EAGLE but takes its own tree of 63 nodes then.

    Lookahead is never detected: only an explicit mode makes the backend read the three sizes.
    """
    if isinstance(speculator, LookaheadSpeculator):
        sizes = (speculator.window_size, speculator.ngram_size, speculator.verification_set_size)
        return TreeSettings(mode=DecodingMode.LOOKAHEAD, lookahead=sizes)
    if isinstance(speculator, (MedusaSpeculator, EagleSpeculator)):
        mode = DecodingMode.MEDUSA if isinstance(speculator, MedusaSpeculator) else DecodingMode.EAGLE
        return TreeSettings(mode=mode, choices=resolved_tree(speculator, medusa_heads) or ())
    return TreeSettings()


def _draft_ranks(lane: Lane, speculator: Speculator | None) -> int:
    """An external draft is an engine of its own with the C++ backend; the reference engine has it inside."""
    return speculator.tp_size if lane is Lane.TENSORRT and isinstance(speculator, DraftTargetSpeculator) else 0


def draw_repository(plan: RepositoryPlan) -> Repository:
    """The configurations of the models, in the order in which a request passes them; the entry comes last."""
    draft = (_draft_engine(plan),) if plan.draft_ranks else ()
    models = (_preprocessing(plan), _engine(plan), *draft, _postprocessing(plan), _ensemble(plan), _entry(plan))
    return Repository(models)


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
        **_tree_parameters(plan.tree),
    }
    if plan.draft_ranks:
        parameters |= {"gpu_device_ids": _devices(plan.ranks), "kv_cache_free_gpu_mem_fraction": SHARED_MEMORY_SHARE}
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


def _tree_parameters(tree: TreeSettings) -> dict[str, str]:
    """Trees in the backend's own spelling: anything else is read as no tree, and its default is taken."""
    if tree.mode is DecodingMode.AUTO:
        return {}
    if tree.mode is DecodingMode.LOOKAHEAD:
        window, ngram, verification = (str(size) for size in tree.lookahead)
        return {
            "decoding_mode": tree.mode.value,
            "enable_kv_cache_reuse": "false",
            "lookahead_window_size": window,
            "lookahead_ngram_size": ngram,
            "lookahead_verification_set_size": verification,
        }
    return {"decoding_mode": tree.mode.value, f"{tree.mode}_choices": choices_text(tree.choices)}


def _devices(ranks: int) -> str:
    """Target and draft share a server, which then spawns their ranks and has to be told each one's GPU."""
    return ",".join(str(rank) for rank in range(ranks))


def _draft_engine(plan: RepositoryPlan) -> ModelConfig:
    """The same model as the target's, with the draft's engine; it never speculates by itself."""
    target = _engine(plan)
    changes = {"gpt_model_path": DRAFT_ENGINE_PLACE, "gpu_device_ids": _devices(plan.draft_ranks)}
    parameters = {**dict(target.parameters), **changes}
    return replace(target, name=ModelName.DRAFT_ENGINE.value, parameters=_parameters(parameters))


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
    if plan.draft_ranks:
        parameters["tensorrt_llm_draft_model_name"] = ModelName.DRAFT_ENGINE.value
        parameters["max_draft_len"] = str(plan.max_draft_len)
    if plan.policy is not None:
        parameters["policy_file"] = POLICY_PLACE
    return ModelConfig(
        name=ModelName.ENTRY.value,
        backend=GUEST_BACKEND,
        max_batch_size=plan.max_batch_size,
        tensors=model_tensors(ModelName.ENTRY, plan.logits_type),
        decoupled=plan.decoupled,
        instance_count=1,
        parameters=_parameters(parameters),
    )
