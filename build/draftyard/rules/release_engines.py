"""What a release says of an engine: read from the engine's own configuration and from what it was built with."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.sealed_release import EngineFacts

# Plugins of TensorRT-LLM 1.2 whose sums over ranks write into the memory of the other GPUs.
_PEER_PLUGINS = ("gemm_allreduce_plugin", "user_buffer", "use_custom_all_reduce")
_OFF = (None, False, "disable", "")


def engine_facts(place: str, config: Mapping[str, Json], built: Mapping[str, Json], size_bytes: int) -> EngineFacts:
    """The identity of a plan: TensorRT-LLM, TensorRT, compute capability, GPU and machine (TensorRT documentation,
    engine portability). `built` is empty for an engine that no builder compiled.
    """
    pretrained = _mapping(config.get("pretrained_config"))
    plugins = _mapping(_mapping(config.get("build_config")).get("plugin_config"))
    ranks = _mapping(pretrained.get("mapping")).get("world_size")
    count = ranks if isinstance(ranks, int) and ranks > 0 else 1
    versions = _mapping(built.get("versions"))
    return EngineFacts(
        place=place,
        ranks=count,
        size_bytes=size_bytes,
        tensorrt_llm=_text(versions.get("tensorrt_llm")),
        tensorrt=_text(versions.get("tensorrt")),
        driver=_text(built.get("driver")),
        compute_capability=_text(built.get("compute_capability")),
        gpu=_text(built.get("gpu")),
        machine=_text(versions.get("machine")),
        needs_peer_access=count > 1 and bool(built) and any(plugins.get(name) not in _OFF for name in _PEER_PLUGINS),
    )


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) and value else None
