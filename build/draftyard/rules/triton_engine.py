"""Compares a repository's plan with the engine it is to serve: where they disagree the engine wins, silently."""

from collections.abc import Collection, Iterable, Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.repository import RepositoryPlan

_PLAN_AGAIN = "plan and build again, so that engine and repository come from one recipe"
_BESIDE = {
    SpeculatorKind.DRAFT_TARGET: "draft",
    SpeculatorKind.EAGLE3: "speculator",
    SpeculatorKind.MTP: "speculator",
}
_SUFFIXES = {Lane.TENSORRT: "engine", Lane.REFERENCE: "safetensors"}


def engine_problems(plan: RepositoryPlan, config: Mapping[str, Json], files: Collection[str]) -> tuple[Problem, ...]:
    """What is wrong with an engine directory: its `config.json` and the paths of its files, for this plan."""
    return (*_file_problems(plan, config, files), *_size_problems(plan, config))


def draft_engine_problems(
    plan: RepositoryPlan, config: Mapping[str, Json], files: Collection[str]
) -> tuple[Problem, ...]:
    """What is wrong with the engine of an external draft: it takes the target's sizes and speculates nothing itself.

    Its vocabulary may be padded otherwise: only token ids are passed on.
    """
    alone = plan.model_copy(update={"speculator": SpeculatorKind.NONE, "max_draft_len": 0, "ranks": plan.draft_ranks})
    problems = [*_file_problems(alone, config, files), *_least_problems(alone, config)]
    drafted = _object(config, "build_config").get("max_draft_len", 0)
    if drafted != 0:
        problems.append(Problem(f"the draft's engine verifies {drafted} drafted tokens itself", _PLAN_AGAIN))
    return tuple(problems)


def version_problems(config: Mapping[str, Json], toolchain: Mapping[str, Json]) -> tuple[Problem, ...]:
    """A backend loads engines of its own version alone; one that needs another batching never gets its inputs.

    In-flight batching, the only kind that a repository is made for, takes packed input and a paged cache.
    """
    built, wanted = config.get("version"), toolchain.get("tensorrt_llm")
    build = _object(config, "build_config")
    plugins = _object(build, "plugin_config")
    problems = []
    if wanted is not None and built != wanted:
        what = f"the engine was built by TensorRT-LLM {built}, the server's backend is {wanted}"
        problems.append(Problem(what, _PLAN_AGAIN))
    if str(build.get("kv_cache_type", "PAGED")).upper() != "PAGED" or plugins.get("paged_kv_cache") is False:
        problems.append(Problem("the engine has no paged KV cache, which in-flight batching needs", _PLAN_AGAIN))
    if plugins.get("remove_input_padding") is False:
        problems.append(Problem("the engine takes padded input, in-flight batching sends it packed", _PLAN_AGAIN))
    return tuple(problems)


def _object(config: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _file_problems(plan: RepositoryPlan, config: Mapping[str, Json], files: Collection[str]) -> Iterable[Problem]:
    mapping = _object(_object(config, "pretrained_config"), "mapping")
    ranks = mapping.get("world_size")
    if not isinstance(ranks, int) or ranks < 1:
        yield Problem("the engine's config.json names no world_size", "build the engine again")
        return
    suffix = _SUFFIXES.get(plan.lane, "safetensors")
    wanted = [f"rank{rank}.{suffix}" for rank in range(ranks)]
    beside = _BESIDE.get(plan.speculator) if plan.lane is Lane.REFERENCE else None
    if beside is not None:
        wanted += [f"{beside}/config.json", f"{beside}/rank0.{suffix}"]
    missing = [name for name in wanted if name not in files]
    if missing:
        yield Problem(
            f"the engine has no {', '.join(missing)}", "build the engine again; the log of its build says why"
        )
    if plan.lane is Lane.TENSORRT and ranks != plan.ranks:
        yield Problem(f"the engine has {ranks} ranks, the repository expects {plan.ranks}", _PLAN_AGAIN)


def _least_problems(plan: RepositoryPlan, config: Mapping[str, Json]) -> Iterable[Problem]:
    """`max_seq_len` of an engine that speculates is longer by the draft (trtllm-build 1.2.1)."""
    build = _object(config, "build_config")
    least = {
        "max_batch_size": plan.max_batch_size,
        "max_input_len": plan.max_input_len,
        "max_seq_len": plan.max_seq_len + plan.max_draft_len,
    }
    for key, asked in least.items():
        built = build.get(key)
        if not isinstance(built, int) or built < asked:
            yield Problem(f"{key}: the repository asks for {asked}, the engine was built with {built}", _PLAN_AGAIN)


def _size_problems(plan: RepositoryPlan, config: Mapping[str, Json]) -> Iterable[Problem]:
    build = _object(config, "build_config")
    yield from _least_problems(plan, config)
    exact: dict[str, tuple[Json, Json]] = {
        "max_draft_len": (plan.max_draft_len, build.get("max_draft_len", 0)),
        "logits_dtype": (plan.logits_type.value, _object(config, "pretrained_config").get("logits_dtype")),
        "vocab_size": (plan.vocab_size, _object(config, "pretrained_config").get("vocab_size")),
    }
    if plan.lane is Lane.REFERENCE:
        own = _object(config, "draftyard")
        exact["speculator"] = (plan.speculator.value, _object(own, "speculator").get("kind"))
        exact["kv_cache_tokens"] = (plan.kv_cache_tokens, own.get("kv_cache_tokens"))
    for key, (asked_value, built_value) in exact.items():
        if asked_value != built_value:
            what = f"{key}: the repository says {asked_value}, the engine {built_value}"
            yield Problem(what, _PLAN_AGAIN)
