"""FP8 in a checkpoint's `config.json` and tensor list: what the block says, which modules it means, what they hold."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.quantization_block import quantization_block
from draftyard.nouns.recipe import EXCLUDED_MODULES, KvCachePrecision, KvScale, Quantisation, Recipe
from draftyard.nouns.source import Source, StoredFp8
from draftyard.nouns.tensor import TensorType

Expected = dict[str, tuple[TensorType, tuple[int, ...]]]

WEIGHT_SCALE = "weights_scaling_factor"
ACTIVATION_SCALE = "activation_scaling_factor"
KV_SCALE = "attention.kv_cache_scaling_factor"
# Heads in a target's files stay in 16 bit: no converter makes scales for them.
HEADS_PATTERN = "*medusa_heads*"

# Linear modules that have an FP8 form (TensorRT-LLM 1.2.1: FP8Linear, FP8RowLinear and the experts); a router has none.
_LINEAR = re.compile(
    r"transformer\.layers\.\d+\.(attention\.(qkv|dense)|mlp\.(fc|gate|proj)|shared_expert\.(fc|gate|proj))|lm_head"
)


@dataclass(frozen=True, slots=True)
class Fp8Form:
    """How a checkpoint is stored in FP8: the precision of what stays in 16 bit, the KV cache, the modules left out.

    `excluded` None leaves the choice to TensorRT-LLM (its default list); empty leaves nothing out.
    """

    rest: Precision
    kv_cache: bool
    excluded: tuple[str, ...] | None

    def block(self) -> dict[str, Json]:
        """The `quantization` object of `config.json`."""
        return {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8" if self.kv_cache else None,
            "exclude_modules": None if self.excluded is None else list(self.excluded),
        }


def fp8_form(weight_type: TensorType, wishes: Quantisation, stored: StoredFp8 | None = None) -> Fp8Form:
    """The form for a source: what is not quantised stays bfloat16 when the source is that, else it is float16.

    A source that is FP8 already (`stored`) decides itself what is left out.
    """
    rest = Precision.BF16 if weight_type is TensorType.BF16 else Precision.FP16
    excluded = wishes.exclude_modules if stored is None else stored.excluded
    return Fp8Form(rest, wishes.kv_cache is KvCachePrecision.FP8, excluded)


def source_problems(recipe: Recipe, source: Source, role: str) -> list[Problem]:
    """Why the precisions of a recipe do not go with how a source is stored."""
    wishes, fp8 = recipe.quantisation, Precision.FP8 in recipe.precisions
    others = [precision.value for precision in recipe.precisions if precision is not Precision.FP8]
    if source.fp8 is None:
        if fp8 and wishes.calibration is None:
            return [Problem("precision fp8 needs texts to calibrate with", "add quantisation.calibration with prompts")]
        return []
    problems = []
    if others:
        problems.append(
            Problem(f"the {role} is FP8 already, {', '.join(others)} would not restore it", "set precisions to [fp8]")
        )
    if fp8 and wishes.exclude_modules not in (EXCLUDED_MODULES, source.fp8.excluded):
        problems.append(
            Problem(
                f"the {role} is FP8 already, with other modules left out than quantisation.exclude_modules says",
                "remove quantisation.exclude_modules",
            )
        )
    unit = wishes.kv_scale is KvScale.UNIT
    if fp8 and wishes.kv_cache is KvCachePrecision.FP8 and not source.fp8.cache_scales and not unit:
        problems.append(
            Problem(
                f"the {role} is FP8 already, but has no scales for an FP8 KV cache",
                "set quantisation.kv_cache to none, or kv_scale to unit",
            )
        )
    return problems


def form_of(config: Mapping[str, Json], rest: Precision) -> Fp8Form | None:
    """The form that a checkpoint's config describes, without what heads add to it; None when it is not FP8."""
    if not is_fp8(config):
        return None
    absent = quantization_block(config).get("exclude_modules") is None
    excluded = tuple(pattern for pattern in excluded_modules(config) if pattern != HEADS_PATTERN)
    return Fp8Form(rest, has_fp8_cache(config), None if absent else excluded)


def excluded_modules(config: Mapping[str, Json]) -> tuple[str, ...]:
    """The patterns of modules left out; absent and null mean TensorRT-LLM's default list, an empty list means none."""
    patterns = quantization_block(config).get("exclude_modules")
    if patterns is None:
        return EXCLUDED_MODULES
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise ValueError(f"exclude_modules is {patterns!r}, no list of patterns")
    return tuple(str(pattern) for pattern in patterns)


def is_fp8(config: Mapping[str, Json]) -> bool:
    """True when the checkpoint's weights are FP8 with one scale a tensor."""
    return quantization_block(config).get("quant_algo") == "FP8"


def has_fp8_cache(config: Mapping[str, Json]) -> bool:
    """True when the checkpoint asks for an FP8 KV cache."""
    return quantization_block(config).get("kv_cache_quant_algo") == "FP8"


def is_quantised(config: Mapping[str, Json], module: str) -> bool:
    """True when the weight of this module (a dotted name without `.weight`) is FP8.

    Patterns are matched as by `fnmatch.fnmatchcase` against the whole name (TensorRT-LLM, quantization/quantize.py).
    """
    if not is_fp8(config) or not _LINEAR.fullmatch(module):
        return False
    return not any(re.fullmatch(_pattern(pattern), module) for pattern in excluded_modules(config))


def with_scales(config: Mapping[str, Json], plain: Expected) -> Expected:
    """The tensors of a rank file when FP8 is asked for: weights in one byte, and the scales beside them.

    Scales are float32 [1] (stacked experts: [experts, 1] for weights) and the same on every rank.
    """
    expected: Expected = {}
    for name, (kind, shape) in plain.items():
        module = name.removesuffix(".weight")
        if module == name or not is_quantised(config, module):
            expected[name] = (kind, shape)
            continue
        expected[name] = (TensorType.F8_E4M3, shape)
        expected[f"{module}.{WEIGHT_SCALE}"] = (TensorType.F32, (shape[0], 1) if len(shape) == 3 else (1,))
        expected[f"{module}.{ACTIVATION_SCALE}"] = (TensorType.F32, (1,))
    if has_fp8_cache(config):
        layers = [name.removesuffix("attention.qkv.weight") for name in plain if name.endswith("attention.qkv.weight")]
        expected |= {f"{layer}{KV_SCALE}": (TensorType.F32, (1,)) for layer in layers if _in_target(layer)}
    return expected


def is_scale(name: str) -> bool:
    """True for the name of a scale: a tensor that follows from no source tensor alone."""
    return name.endswith("_scaling_factor")


def form_problems(network: Network, wishes: Quantisation, role: str, pp_size: int = 1) -> list[Problem]:
    """Why these modules cannot be quantised: a tied head shares its matrix with the embedding, a router has no FP8."""
    config: dict[str, Json] = {"quantization": Fp8Form(Precision.FP16, False, wishes.exclude_modules).block()}
    problems = []
    if network.tied_head and is_quantised(config, "lm_head"):
        problems.append(
            Problem(
                f"the {role}'s lm_head is tied to its embedding, which has no FP8 form",
                'add "*lm_head" to quantisation.exclude_modules',
            )
        )
    router = "transformer.layers.0.mlp.router"
    kept = any(re.fullmatch(_pattern(pattern), router) for pattern in excluded_modules(config))
    if network.experts is not None and not kept:
        problems.append(
            Problem(f"the {role}'s routers have no FP8 form", 'add "*router" to quantisation.exclude_modules')
        )
    if not any(
        is_quantised(config, f"transformer.layers.0.{name}") for name in ("attention.qkv", "mlp.fc", "mlp.proj")
    ):
        problems.append(
            Problem(
                f"quantisation.exclude_modules leaves nothing of the {role} to quantise", "exclude less, or use fp16"
            )
        )
    return problems


def _in_target(layer: str) -> bool:
    """Layers of drafters in the same file keep their cache as it is."""
    return layer.startswith("transformer.layers.")


def _pattern(words: str) -> str:
    """A shell pattern as a regular expression: `*`, `?` and `[...]`."""
    parts = re.split(r"(\*|\?|\[!?\]?[^\]]*\])", words)
    return "".join(_piece(part) for part in parts)


def _piece(part: str) -> str:
    if part == "*":
        return ".*"
    if part == "?":
        return "."
    if part.startswith("[") and part.endswith("]") and len(part) > 2:
        inner = part[1:-1]
        letters = "".join(letter if letter == "-" else re.escape(letter) for letter in inner.removeprefix("!"))
        return f"[^{letters}]" if inner.startswith("!") else f"[{letters}]"
    return re.escape(part)
