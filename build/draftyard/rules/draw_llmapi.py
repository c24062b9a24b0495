"""Draws what the llmapi lane executes: a model directory as it is, a speculator's beside it, and the settings."""

from collections.abc import Mapping
from dataclasses import dataclass

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.nouns.network import Precision
from draftyard.nouns.policy import Policy
from draftyard.nouns.recipe import Recipe, Speculator
from draftyard.nouns.source import Source
from draftyard.rules.llmapi_model import LlmapiPlaces, model_settings

TARGET_PLACE, SPECULATOR_PLACE = "target", "speculator"
_DTYPES = {Precision.FP16: "float16", Precision.BF16: "bfloat16"}


@dataclass(frozen=True, slots=True)
class LlmapiRequest:
    """One engine of the lane; `kv_cache_tokens` bounds its pool, `policy` switches its speculation off by load."""

    recipe: Recipe
    precision: Precision
    speculator: Speculator | None
    kv_cache_tokens: int
    policy: Policy | None = None


def llmapi_settings(request: LlmapiRequest) -> dict[str, Json]:
    """The whole `model.yaml`; paths are relative to the engine's directory.

    Weights are cast when they are loaded (`dtype`); FP8 weights are taken as they are stored.
    """
    recipe = request.recipe
    settings = model_settings(
        places=LlmapiPlaces(TARGET_PLACE, SPECULATOR_PLACE),
        limits=recipe.limits,
        speculator=request.speculator,
        tp_size=recipe.target.tp_size,
        pp_size=recipe.target.pp_size,
        kv_cache_tokens=request.kv_cache_tokens,
        most_speculating=most_speculating(request.policy) if request.speculator is not None else None,
    )
    return {**settings, "dtype": _DTYPES.get(request.precision, "auto")}


def most_speculating(policy: Policy | None) -> int | None:
    """`max_concurrency`: the largest load at which the policy still drafts; None without a policy or a bound."""
    if policy is None:
        return None
    loads = [step.running for step in policy.steps if step.max_draft_len == 0]
    return max(min(loads) - 1, 1) if loads else None


def llmapi_problems(recipe: Recipe, target: Source) -> list[Problem]:
    """Why a target cannot be executed by this lane; empty when it can."""
    if Precision.FP8 in recipe.precisions and target.fp8 is None:
        return [
            Problem(
                "the llmapi lane takes FP8 only from a model that is stored so: its backend calibrates nothing",
                "give a model in FP8 (ModelOpt, compressed-tensors), or use fp16 or bf16",
            )
        ]
    return []


def options_of(settings: Mapping[str, Json]) -> dict[str, Json]:
    """The same settings for `trtllm-serve` and `trtllm-bench`, which take the model's path apart and no Triton keys."""
    return {name: value for name, value in settings.items() if name not in ("model", "triton_config")}
