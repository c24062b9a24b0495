"""An engine build as the parameters of a step: drawn from limits and speculator, and read back by the maker."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.engine_build import BuildMode, EngineBuild
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.recipe import Limits, Speculator
from draftyard.rules.build_argv import build_options, expected_build_config

_MODES = {
    SpeculatorKind.DRAFT_TARGET: BuildMode.DRAFT_TOKENS_EXTERNAL,
    SpeculatorKind.NGRAM: BuildMode.DRAFT_TOKENS_EXTERNAL,
    SpeculatorKind.MEDUSA: BuildMode.MEDUSA,
    SpeculatorKind.EAGLE: BuildMode.EAGLE,
    SpeculatorKind.LOOKAHEAD: BuildMode.LOOKAHEAD,
}
_SIZES = (
    "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_draft_len", "draft_depth",
    "tokens_per_block",
)  # fmt: skip


def draw_build(
    checkpoint: Mapping[str, Json],
    gpu: Gpu,
    limits: Limits,
    speculator: Speculator | None,
    overrides: Mapping[str, str],
) -> EngineBuild:
    """The engine of a target with the way it speculates; None: plain, which is also how an external draft is built.

    Raises KeyError for a speculator that has no engine of this lane (EAGLE-3 and MTP).
    """
    return EngineBuild(
        checkpoint=checkpoint,
        gpu=gpu,
        mode=BuildMode.NONE if speculator is None else _MODES[SpeculatorKind(speculator.kind)],
        max_batch_size=limits.max_batch_size,
        max_input_len=limits.max_input_len,
        max_seq_len=limits.max_seq_len,
        max_num_tokens=limits.max_num_tokens,
        max_draft_len=0 if speculator is None else speculator.max_draft_len,
        draft_depth=0 if speculator is None else speculator.draft_depth,
        overrides=tuple(sorted(overrides.items())),
    )


def build_parameters(build: EngineBuild) -> dict[str, Json]:
    """What decides the engine's bytes: the request, and the options and stored values that follow from it."""
    sizes: dict[str, Json] = {name: getattr(build, name) for name in _SIZES}
    return {
        "lane": "tensorrt",
        "gpu": build.gpu.value,
        "build": {**sizes, "mode": build.mode.value, "overrides": dict(build.overrides)},
        "checkpoint": dict(build.checkpoint),
        "options": dict(build_options(build)),
        "config": {"pretrained_config": dict(build.checkpoint), "build_config": expected_build_config(build)},
    }


def read_build(parameters: Mapping[str, Json]) -> EngineBuild:
    """The build that `build_parameters` wrote; ValueError for anything else."""
    checkpoint, request = parameters.get("checkpoint"), parameters.get("build")
    if not isinstance(checkpoint, Mapping) or not isinstance(request, Mapping):
        raise ValueError("a step of the tensorrt lane carries `checkpoint` and `build`")
    overrides = request.get("overrides")
    sizes = [request.get(name) for name in _SIZES]
    if not isinstance(overrides, Mapping) or not all(isinstance(size, int) for size in sizes):
        raise ValueError("`build` of the tensorrt lane holds sizes and overrides")
    batch, input_len, seq_len, tokens, draft, depth, block = (int(str(size)) for size in sizes)
    return EngineBuild(
        checkpoint=checkpoint,
        gpu=Gpu(str(parameters["gpu"])),
        mode=BuildMode(str(request["mode"])),
        max_batch_size=batch,
        max_input_len=input_len,
        max_seq_len=seq_len,
        max_num_tokens=tokens,
        max_draft_len=draft,
        draft_depth=depth,
        tokens_per_block=block,
        overrides=tuple(sorted((name, str(value)) for name, value in overrides.items())),
    )
