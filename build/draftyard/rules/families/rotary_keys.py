"""Resolves the rotary embedding of a config: both places, both spellings, every number, no default for the base."""

import re
from collections.abc import Mapping, Sequence

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.nouns.network import RotaryScaling
from draftyard.rules.families.config_keys import ConfigKeys

# Required numbers of each kind, as in transformers' modeling_rope_utils (v5) and TensorRT-LLM's RopeEmbeddingUtils.
KINDS: dict[str, tuple[str, ...]] = {
    "dynamic": ("factor",),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor"),
    "yarn": ("factor",),
}
_ALIASES = {"su": "longrope", "default": "none", "none": "none"}
_ORIGINAL = "original_max_position_embeddings"
_WITH_ORIGINAL = ("llama3", "longrope", "yarn")
_ABOVE_ZERO = {
    *("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"),
    *("mscale", "mscale_all_dim", _ORIGINAL),
}
_FIRST_BASE = 10000.0
_NOT_VALUES = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}


def resolve_rotary(keys: ConfigKeys, head_size: int) -> tuple[float, RotaryScaling | None]:
    """Rotary base and scaling of a config; problems go to `keys`.

    `rope_theta` may stand at the top or in `rope_parameters`; scaling in `rope_scaling` or `rope_parameters`, its
    kind under `rope_type` or `type`. A base that is nowhere is a problem: a default would be silently wrong.
    """
    blocks = {name: _block(keys, name) for name in ("rope_parameters", "rope_scaling")}
    base = _base(keys, blocks)
    scalings = {name: _scaling(keys, name, block) for name, block in blocks.items() if block}
    kinds = list(dict.fromkeys(scalings.values()))
    if len(kinds) > 1:
        keys.fail("config.json: rope_parameters and rope_scaling disagree", "keep one of the two in config.json")
    scaling = kinds[0] if kinds else None
    _check_partial(keys, blocks)
    if scaling is not None and scaling.kind == "longrope":
        _check_lists(keys, scaling, head_size)
    return base, scaling


def _block(keys: ConfigKeys, name: str) -> Mapping[str, Json]:
    value = keys.config.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        keys.fail(f"config.json: {name} is {value!r}, not an object", f"correct {name}")
        return {}
    if value and all(isinstance(entry, Mapping) for entry in value.values()):
        keys.fail(
            f"config.json: {name} has one object per layer type ({', '.join(value)}); one for all is supported",
            "choose a model with one rotary setting for all layers",
        )
        return {}
    return value


def _base(keys: ConfigKeys, blocks: Mapping[str, Mapping[str, Json]]) -> float:
    found: dict[str, float] = {}
    candidates = {"rope_theta": keys.config, **{f"{name}.rope_theta": block for name, block in blocks.items()}}
    for label, holder in candidates.items():
        value = holder.get("rope_theta")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            keys.fail(f"config.json: {label} is {value!r}, not a number above 0", "correct rope_theta")
            continue
        found[label] = float(value)
    if not found and _before_bases(keys.config):
        keys.notes.append(f"no rope_theta, as transformers wrote Llama before 4.33: {_FIRST_BASE:g}, the only one then")
        return _FIRST_BASE
    if not found and not any(problem.hint == "correct rope_theta" for problem in keys.problems):
        keys.fail(
            "config.json has no rope_theta, neither at the top nor in rope_parameters",
            "add the rope_theta the model was trained with; there is no safe default",
        )
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{label} {value:g}" for label, value in found.items())
        keys.fail(f"config.json gives different rotary bases: {shown}", "keep the one the model was trained with")
    return next(iter(found.values()), 1.0)


def _before_bases(config: Mapping[str, Json]) -> bool:
    """Llama as transformers before 4.33 saved it (Llama 2, Vicuna): its code knew one base and wrote none."""
    version = re.match(r"(\d+)\.(\d+)", str(config.get("transformers_version")))
    known = version is not None and (int(version[1]), int(version[2])) < (4, 33)
    return known and config.get("model_type") == "llama"


def _scaling(keys: ConfigKeys, name: str, block: Mapping[str, Json]) -> RotaryScaling | None:
    spelled = {block[key] for key in ("rope_type", "type") if isinstance(block.get(key), str)}
    kinds = {_ALIASES.get(str(word), str(word)) for word in spelled}
    if len(kinds) > 1:
        keys.fail(f"config.json: {name} says both {' and '.join(sorted(kinds))}", "keep the right rope_type")
        return None
    kind = kinds.pop() if kinds else "none"
    values: dict[str, Json] = {
        key: value for key, value in block.items() if key not in _NOT_VALUES and value is not None
    }
    if kind in _WITH_ORIGINAL:
        _add_original(keys, name, values)
    if kind == "none":
        if "factor" in values:
            keys.fail(f"config.json: {name} has a factor but no rope_type", "add the rope_type to it")
        return None
    if kind not in KINDS:
        keys.fail(
            f"config.json: {name} has the rotary kind {kind!r}; supported: default, {', '.join(sorted(KINDS))}",
            "choose another model, or correct rope_type",
        )
        return None
    missing = [key for key in KINDS[kind] if key not in values]
    if missing:
        keys.fail(f"config.json: {name} of kind {kind} lacks {', '.join(missing)}", f"add them to {name}")
    resolved = {key: _value(keys, name, key, values[key]) for key in sorted(values)}
    _check_numbers(keys, name, resolved)
    return RotaryScaling(kind, tuple(resolved.items()))


def _add_original(keys: ConfigKeys, name: str, values: dict[str, Json]) -> None:
    """Some configs keep the length that was trained before the scaling beside the block, not in it."""
    outer = keys.config.get(_ORIGINAL)
    if outer is None:
        return
    if values.setdefault(_ORIGINAL, outer) != outer:
        keys.fail(
            f"config.json: {_ORIGINAL} is {outer!r} at the top and {values[_ORIGINAL]!r} in {name}",
            "keep the right one",
        )


def _check_numbers(keys: ConfigKeys, name: str, values: Mapping[str, float | int | bool | tuple[float, ...]]) -> None:
    """Factors and lengths divide or are divided by, so they are above 0."""
    for key, value in values.items():
        if key in _ABOVE_ZERO and not isinstance(value, tuple) and (isinstance(value, bool) or value <= 0):
            keys.fail(f"config.json: {name}.{key} is {value!r}, not a number above 0", f"correct {key}")
    low, high = values.get("low_freq_factor"), values.get("high_freq_factor")
    if isinstance(low, int | float) and isinstance(high, int | float) and low >= high:
        keys.fail(
            f"config.json: {name}.low_freq_factor {low} is not below high_freq_factor {high}", "correct the two factors"
        )


def _value(keys: ConfigKeys, name: str, key: str, value: Json) -> float | int | bool | tuple[float, ...]:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = [float(item) for item in value if isinstance(item, int | float)]
        if len(numbers) == len(value):
            return tuple(numbers)
    keys.problems.append(Problem(f"config.json: {name}.{key} is {value!r}, not a number", f"correct {key}"))
    return 0


def _check_partial(keys: ConfigKeys, blocks: Mapping[str, Mapping[str, Json]]) -> None:
    for holder in (keys.config, *blocks.values()):
        factor = holder.get("partial_rotary_factor")
        if factor is not None and factor != 1:
            keys.fail(
                f"config.json: partial_rotary_factor is {factor!r}; only whole heads can be rotated",
                "choose another model",
            )


def _check_lists(keys: ConfigKeys, scaling: RotaryScaling, head_size: int) -> None:
    for key, value in scaling.values:
        if key.endswith("_factor") and isinstance(value, tuple) and len(value) != head_size // 2:
            keys.fail(
                f"config.json: {key} has {len(value)} entries, expected {head_size // 2} (head size {head_size} / 2)",
                f"correct {key}",
            )
