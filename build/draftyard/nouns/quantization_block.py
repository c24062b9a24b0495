"""The `quantization` object of a checkpoint's `config.json`, refused when another version wrote it."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure

# QuantConfig of TensorRT-LLM 1.2.1; its constructor refuses any other key.
_KEYS = (
    "quant_algo",
    "kv_cache_quant_algo",
    "group_size",
    "smoothquant_val",
    "clamp_val",
    "use_meta_recipe",
    "has_zero_point",
    "pre_quant_scale",
    "exclude_modules",
)


def quantization_block(config: Mapping[str, Json]) -> Mapping[str, Json]:
    """The object; empty when absent. Failure when it has keys that TensorRT-LLM 1.2.1 does not know."""
    block = config.get("quantization") or {}
    strange = sorted(set(block) - set(_KEYS)) if isinstance(block, Mapping) else [repr(block)]
    if not isinstance(block, Mapping) or strange:
        raise Failure(
            f"config.json: quantization has unknown keys {', '.join(strange)} (written by {_writer(config)})",
            "build the checkpoint again with this version",
            ExitCode.ENVIRONMENT,
        )
    return block


def _writer(config: Mapping[str, Json]) -> str:
    producer = config.get("producer")
    if isinstance(producer, Mapping):
        return f"{producer.get('name')} {producer.get('version')}"
    return f"version {config['version']}" if "version" in config else "an unnamed tool"
