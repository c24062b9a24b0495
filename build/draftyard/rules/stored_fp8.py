"""Models whose files are FP8 already: which of the published formats are taken over, and why the others are not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.nouns.recipe import EXCLUDED_MODULES
from draftyard.nouns.source import ModelFiles, StoredFp8
from draftyard.nouns.tensor import TensorHeader, TensorType, name_list
from draftyard.rules.families.family import Rule

WEIGHT_SCALE, INPUT_SCALE = "weight_scale", "input_scale"
# Where the exporters put the scales of cached keys and values, below a layer's attention.
KEY_SCALES = ("k_proj.k_scale", "k_scale")
VALUE_SCALES = ("v_proj.v_scale", "v_scale")
_HINT = "give the unquantised model, or one in FP8 with one static scale for each tensor"
_SCALE_TYPES = (TensorType.F32, TensorType.BF16, TensorType.F16)


@dataclass(frozen=True, slots=True)
class Fp8Finding:
    """What the files say about FP8. `files` is without FP8 weights' types and scales, for everyone who looks further.

    `claimed` tells that the method is one of these, taken over or refused with a reason.
    """

    claimed: bool
    method: str
    problems: tuple[Problem, ...]
    files: ModelFiles


def find_fp8(files: ModelFiles) -> Fp8Finding:
    """Recognise the method by the settings, and take its scales out of sight. Names and shapes are checked later."""
    block = files.config.get("quantization_config")
    settings = block if isinstance(block, Mapping) else {}
    method = str(settings.get("quant_method", ""))
    inner = files.quantisation.get("quantization")
    if isinstance(inner, Mapping) and (not method or method == "modelopt"):
        method, settings = "modelopt", inner
    refusals = _METHODS.get(method)
    if refusals is None:
        return Fp8Finding(False, method, (), files)
    wrong = [Problem(f"{method}: {words}", _HINT) for words in refusals(settings)]
    tensors = tuple(_as_plain(tensor) for tensor in files.tensors if not is_stored_scale(tensor.name))
    listed = tuple(name for name in files.listed if not is_stored_scale(name))
    return Fp8Finding(True, method, tuple(wrong), replace(files, tensors=tensors, listed=listed))


def stored_fp8(method: str, files: ModelFiles, rules: Sequence[Rule]) -> StoredFp8 | tuple[Problem, ...]:
    """What is FP8 in files whose settings were accepted; `rules` are those of the network.

    Problems: a weight without its scales, a scale of more than one number, a kind of module that is FP8 in some layers
    only, FP8 where no checkpoint has it.
    """
    found = {tensor.name: tensor for tensor in files.tensors}
    quantised = {name for name, tensor in found.items() if tensor.type is TensorType.F8_E4M3}
    problems = _scale_problems(found, quantised)
    kinds: dict[str, set[bool]] = {}
    placed: set[str] = set()
    for rule in rules:
        module = rule.name.removesuffix(".weight")
        if module in _KINDS:
            names = {part.name for part in rule.parts}
            kinds.setdefault(module, set()).update(name in quantised for name in names)
            placed |= names
    mixed = sorted(module for module, states in kinds.items() if len(states) > 1)
    if mixed:
        problems.append(Problem(f"FP8 in some layers or parts only: {name_list(mixed)}", _HINT))
    strange = sorted(quantised - placed)
    if strange:
        problems.append(Problem(f"FP8 where checkpoints have none: {name_list(strange)}", _HINT))
    if not quantised:
        problems.append(Problem(f"{method} says FP8, but no weight is", "fetch the files again"))
    if problems:
        return tuple(problems)
    plain = sorted(f"*{module}" for module, states in kinds.items() if states == {False} and module != "lm_head")
    default = EXCLUDED_MODULES if kinds.get("lm_head") != {True} else EXCLUDED_MODULES[1:]
    cached = any(tensor.name.endswith(KEY_SCALES) for tensor in files.tensors)
    return StoredFp8(method, (*default, *plain), cached)


def is_stored_scale(name: str) -> bool:
    """True for the name of a scale beside a weight or of a cache."""
    return name.endswith((f".{WEIGHT_SCALE}", f".{INPUT_SCALE}", ".k_scale", ".v_scale"))


def _as_plain(tensor: TensorHeader) -> TensorHeader:
    """FP8 weights pass for 16-bit ones where only names and shapes matter; they have no bytes of that type."""
    return replace(tensor, type=TensorType.BF16, size_bytes=0) if tensor.type is TensorType.F8_E4M3 else tensor


def _scale_problems(found: Mapping[str, TensorHeader], quantised: set[str]) -> list[Problem]:
    lacking, wide = [], []
    for name in sorted(quantised):
        for scale in (WEIGHT_SCALE, INPUT_SCALE):
            header = found.get(f"{name.removesuffix('weight')}{scale}")
            if header is None:
                lacking.append(f"{name.removesuffix('weight')}{scale}")
            elif header.size_bytes != header.type.item_bytes or header.type not in _SCALE_TYPES:
                wide.append(f"{header.name} {header.type} {list(header.shape)}")
    problems = []
    if lacking:
        problems.append(Problem(f"FP8 weights without their scales: {name_list(lacking)}", _HINT))
    if wide:
        problems.append(Problem(f"scales that are no single number: {name_list(wide)}", _HINT))
    return problems


def _compressed_tensors(settings: Mapping[str, Json]) -> list[str]:
    groups = settings.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        return ["its settings have no config_groups"]
    wrong: list[str] = []
    for group in groups.values():
        for side, words in (("weights", "weights"), ("input_activations", "activations")):
            scheme = group.get(side) if isinstance(group, Mapping) else None
            if not isinstance(scheme, Mapping):
                wrong.append(f"{words} are not quantised, FP8 needs both")
                continue
            if scheme.get("type") != "float" or scheme.get("num_bits") != 8:
                wrong.append(f"{words} are {scheme.get('num_bits')}-bit {scheme.get('type')}, not FP8")
            elif scheme.get("dynamic"):
                wrong.append(f"{words} are scaled dynamically")
            elif scheme.get("strategy") != "tensor":
                wrong.append(f"{words} have a scale for each {scheme.get('strategy')}")
    return list(dict.fromkeys(wrong))


def _fbgemm(settings: Mapping[str, Json]) -> list[str]:
    return ["weights have a scale for each row, activations are scaled dynamically"]


def _plain_fp8(settings: Mapping[str, Json]) -> list[str]:
    wrong = []
    if settings.get("weight_block_size"):
        wrong.append("weights have a scale for each block")
    if settings.get("activation_scheme") != "static":
        wrong.append("activations are scaled dynamically")
    return wrong


def _modelopt(settings: Mapping[str, Json]) -> list[str]:
    algorithm, cache = settings.get("quant_algo"), settings.get("kv_cache_quant_algo")
    wrong = []
    if algorithm != "FP8":
        wrong.append(f"quant_algo is {algorithm}, only FP8 with one scale a tensor is taken over")
    if cache not in (None, "FP8"):
        wrong.append(f"the KV cache is {cache}")
    return wrong


_METHODS: Mapping[str, Callable[[Mapping[str, Json]], list[str]]] = {
    "compressed-tensors": _compressed_tensors,
    "fbgemm_fp8": _fbgemm,
    "fp8": _plain_fp8,
    "modelopt": _modelopt,
}
_KINDS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj", "lm_head")
