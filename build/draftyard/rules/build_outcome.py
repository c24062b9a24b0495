"""Judges a finished build by what it left, never by its exit code alone."""

import re
from collections.abc import Mapping, Sequence

from draftyard.nouns.digest import Json, canonical
from draftyard.nouns.engine_build import BuildRemains, EngineBuild
from draftyard.nouns.errors import Problem
from draftyard.rules.build_argv import checkpoint_identity, expected_build_config

# A plan holds its rank's weights, some fused (gate and up projections), some padded; less or more is no plan of them.
LEAST_SHARE, LARGEST_SHARE, PLAN_OVERHEAD_BYTES = 0.5, 1.6, 512 << 20
_SIGNALS = {
    6: "an abort",
    7: "a bus error",
    9: "the kernel or an operator (kill)",
    11: "a crash",
    15: "a request to end",
}
# What looks like a fault and is none; it must not be shown as the cause.
HARMLESS = (
    re.compile(r"timing cache", re.IGNORECASE),
    re.compile(r"LEGACY WARNING"),
    re.compile(r"Implicitly setting"),
    re.compile(r"is deprecated"),
    re.compile(r"has no effect"),
    re.compile(r"Provided but not required tensors"),
)
_CAUSES = (
    (
        re.compile(r"CUDA out of memory|CUDA error: out of memory|OutOfMemory", re.IGNORECASE),
        "the GPU's memory is too small",
        "lower max_num_tokens or max_batch_size, or shard over more GPUs",
    ),
    (re.compile(r"No space left on device"), "the disk is full", "free disk space and build again"),
    (
        re.compile(r"Cannot allocate memory|std::bad_alloc|MemoryError"),
        "the host's memory is too small",
        "build with fewer workers or on a host with more memory",
    ),
    (
        re.compile(r"unrecognized arguments"),
        "the builder does not know an option",
        "use TensorRT-LLM of the pinned version",
    ),
    (
        re.compile(r"No CUDA GPUs are available|no CUDA-capable device"),
        "no GPU is visible to the builder",
        "build on a host with the GPU of the recipe",
    ),
)
_ERROR_LINE = re.compile(r"^\s*(?:\w+\.)*(?:\w*Error|\w*Exception|AssertionError)\b.*|\[E\].*|^error:.*", re.MULTILINE)


def outcome_problems(
    build: EngineBuild, remains: BuildRemains, rank_weight_bytes: Sequence[int], version: str
) -> list[Problem]:
    """Why what a build left is no engine for `build`; the cause first. Empty when everything is as asked.

    `rank_weight_bytes` are the sizes of the checkpoint's rank files, `version` the TensorRT-LLM that is pinned.
    """
    ended = _exit_problem(remains)
    if ended is not None:
        return [ended, *_log_warnings(remains.log)]
    if remains.config is None:
        return [Problem("the builder ended well but left no readable config.json", "read the log")]
    return [
        *_plan_problems(remains, rank_weight_bytes),
        *_version_problems(remains.config, version),
        *_config_problems(build, remains.config),
    ]


def _exit_problem(remains: BuildRemains) -> Problem | None:
    if remains.timed_out:
        return Problem(
            "the build did not end within its time limit", "raise --step-timeout, or read the log for where it hangs"
        )
    if remains.out_of_host_memory:
        return Problem(
            "the build needed more host memory than it was given", "raise --memory-gib or build fewer ranks at once"
        )
    if remains.exit_code == 0:
        return None
    signal = -remains.exit_code if remains.exit_code < 0 else remains.exit_code - 128
    for pattern, cause, hint in _CAUSES:
        if pattern.search(remains.log):
            return Problem(f"the build failed: {cause}{_shown(last_error(remains.log))}", hint)
    if signal in _SIGNALS:
        ranks = f", {_plans(remains)} finished" if _plans(remains) != "no rank" else ""
        words = f"the build was ended by {_SIGNALS[signal]}, signal {signal}{ranks}"
        hint = (
            "most often the host ran out of memory: build with --workers 1, watch dmesg"
            if signal == 9
            else "read the log"
        )
        return Problem(words, hint)
    return Problem(
        f"the build failed with exit code {remains.exit_code}{_shown(last_error(remains.log))}", "read the log"
    )


def last_error(log: str) -> str:
    """The last line of a log that names an error and is not known to be harmless; empty when there is none."""
    lines = [match.group(0).strip() for match in _ERROR_LINE.finditer(log)]
    real = [line for line in lines if not is_harmless(line)]
    return real[-1][:300] if real else ""


def is_harmless(line: str) -> bool:
    """True for the lines that are known to be printed by good builds."""
    return any(pattern.search(line) for pattern in HARMLESS)


def _log_warnings(log: str) -> list[Problem]:
    """Warnings beside a failure, the harmless ones marked; three at most."""
    lines = [line.strip() for line in log.splitlines() if "[W]" in line or "warning" in line.lower()]
    shown = [f"{'harmless warning' if is_harmless(line) else 'warning'}: {line[:200]}" for line in lines[-3:]]
    return [Problem(words, "beside the cause, not the cause") for words in shown]


def _plans(remains: BuildRemains) -> str:
    found = sorted(name for name in remains.files if re.fullmatch(r"rank\d+\.engine", name))
    return ", ".join(found) or "no rank"


def _plan_problems(remains: BuildRemains, rank_weight_bytes: Sequence[int]) -> list[Problem]:
    """One plan a rank, of a size that can hold the rank's weights."""
    problems = []
    wanted = {f"rank{rank}.engine": weights for rank, weights in enumerate(rank_weight_bytes)}
    found = {name for name in remains.files if re.fullmatch(r"rank\d+\.engine", name)}
    missing, extra = sorted(set(wanted) - found), sorted(found - set(wanted))
    if missing:
        have = len(wanted) - len(missing)
        problems.append(Problem(f"{have} of {len(wanted)} ranks were built: no {', '.join(missing)}", "read the log"))
    if extra:
        problems.append(Problem(f"plans that belong to no rank: {', '.join(extra)}", "build again"))
    for name in sorted(set(wanted) & found):
        size, weights = remains.files[name], wanted[name]
        if not LEAST_SHARE * weights <= size <= LARGEST_SHARE * weights + PLAN_OVERHEAD_BYTES:
            words = f"{name} has {size} bytes, its weights {weights}: the plan is cut or not of this checkpoint"
            problems.append(Problem(words, "build again and watch disk and memory"))
    return problems


def _version_problems(config: Mapping[str, Json], version: str) -> list[Problem]:
    found = config.get("version")
    if found == version:
        return []
    return [Problem(f"built by TensorRT-LLM {found}, pinned is {version}", "build in the pinned container")]


def _config_problems(build: EngineBuild, config: Mapping[str, Json]) -> list[Problem]:
    """The emitted config field by field against the request."""
    differing: list[str] = []
    own, pretrained = config.get("build_config"), config.get("pretrained_config")
    if not isinstance(own, Mapping) or not isinstance(pretrained, Mapping):
        return [Problem("config.json has no build_config or pretrained_config", "build again")]
    expected = expected_build_config(build)
    plugins, found_plugins = expected.pop("plugin_config"), own.get("plugin_config")
    differing += _differences("build_config", expected, own)
    if isinstance(plugins, Mapping):
        found = found_plugins if isinstance(found_plugins, Mapping) else {}
        dtype = build.checkpoint.get("dtype")
        # The builder stores `auto` as it is or resolved to the checkpoint's type, depending on the release.
        relaxed = {
            name: dtype if value == "auto" and found.get(name) == dtype else value for name, value in plugins.items()
        }
        differing += _differences("plugin_config", relaxed, found)
    differing += _differences("pretrained_config", checkpoint_identity(build.checkpoint), pretrained)
    differing += _differences("quantization", _quantisation(build.checkpoint), _quantisation(pretrained))
    differing += _differences("mapping", _mapping(build.checkpoint), _mapping(pretrained))
    if not differing:
        return []
    hint = "an option was overridden: read the log, report the combination, choose another"
    return [Problem(f"the engine is not what was asked: {words}", hint) for words in differing]


def _differences(where: str, wanted: Mapping[str, Json], found: Mapping[str, Json]) -> list[str]:
    return [
        f"{where}.{name} is {_short(found.get(name))}, asked {_short(value)}"
        for name, value in wanted.items()
        if canonical(found.get(name)) != canonical(value)
    ]


def _quantisation(config: Mapping[str, Json]) -> dict[str, Json]:
    block = config.get("quantization")
    block = block if isinstance(block, Mapping) else {}
    return {name: block.get(name) for name in ("quant_algo", "kv_cache_quant_algo")}


def _mapping(config: Mapping[str, Json]) -> dict[str, Json]:
    block = config.get("mapping")
    block = block if isinstance(block, Mapping) else {}
    return {name: block.get(name, 1) for name in ("world_size", "tp_size", "pp_size")}


def _short(value: Json) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _shown(line: str) -> str:
    return f" ({line})" if line else ""
