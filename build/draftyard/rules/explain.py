"""Says of each step whether it is there, and if not, why; and what a variant needs in memory, part by part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from draftyard.nouns.blueprint import Blueprint, Step, StepKind, Variant
from draftyard.nouns.digest import Json
from draftyard.nouns.enums import StrEnum
from draftyard.nouns.gpu import Gpu
from draftyard.rules.quantisation import has_fp8_cache, is_fp8
from draftyard.rules.trtllm import world_size
from draftyard.rules.trtllm_heads import promised_tensors

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_FLOAT32_BYTES = 4

# Where a value of an artefact comes from in the recipe; all other paths are shown as they are.
_RECIPE_WORDS = {
    "config.build_config.max_batch_size": "limits.max_batch_size",
    "config.build_config.max_input_len": "limits.max_input_len",
    "config.build_config.max_seq_len": "limits.max_seq_len",
    "config.build_config.max_num_tokens": "limits.max_num_tokens",
    "config.build_config.max_draft_len": "speculators.max_draft_len",
    "config.draftyard.speculator.max_draft_len": "speculators.max_draft_len",
    "config.draftyard.speculator.min_match": "speculators.min_match",
    "config.draftyard.speculator.max_match": "speculators.max_match",
    "config.draftyard.speculator.choices": "speculators.choices",
    "config.draftyard.speculator.depth": "depth of the tree",
    "config.draftyard.speculator.heads": "speculators.heads",
    "config.draftyard.speculator.dynamic_top_k": "speculators.dynamic_tree_max_top_k",
    "config.draftyard.speculator.max_non_leaves_per_layer": "speculators.max_non_leaves_per_layer",
    "config.max_draft_len": "speculators.max_draft_len",
    "config.num_medusa_heads": "speculators.heads",
    "config.num_eagle_layers": "speculators.num_eagle_layers",
    "config.max_non_leaves_per_layer": "speculators.max_non_leaves_per_layer",
    "config.draftyard.kv_cache_tokens": "serving.kv_cache_tokens",
    "config.quantization.kv_cache_quant_algo": "quantisation.kv_cache",
    "config.quantization.exclude_modules": "quantisation.exclude_modules",
    "prompts": "contents of quantisation.calibration.prompts",
    "text_field": "quantisation.calibration.text_field",
    "samples": "quantisation.calibration.samples",
    "max_tokens": "quantisation.calibration.max_tokens",
    "plan.max_batch_size": "limits.max_batch_size",
    "plan.max_input_len": "limits.max_input_len",
    "plan.max_seq_len": "limits.max_seq_len",
    "plan.max_draft_len": "speculators.max_draft_len",
    "plan.kv_cache_tokens": "serving.kv_cache_tokens",
    "plan.max_queue_size": "serving.max_queue_size",
    "plan.default_timeout_s": "serving.default_timeout_s",
    "plan.guests_digest": "guests of the server",
}


class StepState(StrEnum):
    """One word for a step."""

    HAVE = "have"
    MISSING = "missing"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs from what was built last; JSON texts, empty when absent on that side."""

    field: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.field} {_short(self.old) or 'unset'} -> {_short(self.new) or 'unset'}"


@dataclass(frozen=True, slots=True)
class StepExplanation:
    """A step, its state, what changed since it was built last, and the call that makes it."""

    label: str
    kind: str
    key: str
    state: StepState
    changes: tuple[Change, ...]
    call: str

    @property
    def reason(self) -> str:
        """The state in words: `have`, `missing`, `changed: limits.max_batch_size 8 -> 16`."""
        if not self.changes:
            return self.state.value
        return f"{self.state}: " + ", ".join(str(change) for change in self.changes)


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Bytes of one use of memory, and the formula."""

    part: str
    bytes: int
    formula: str


@dataclass(frozen=True, slots=True)
class VariantMemory:
    """What one variant needs while it serves; the formula says which parts are estimates."""

    variant: str
    parts: tuple[MemoryPart, ...]

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(part.bytes for part in self.parts)


def explain(blueprint: Blueprint, have: frozenset[str], last: tuple[Step, ...]) -> tuple[StepExplanation, ...]:
    """One explanation per step. `have` are the keys of artefacts that exist, `last` the steps built last."""
    before = {step.label: step for step in last}
    return tuple(_explain_step(step, blueprint, have, before) for step in blueprint.steps)


def variant_memory(blueprint: Blueprint, variant: Variant) -> VariantMemory:
    """Weights by checkpoint, KV pools, logits and activations; all from configurations alone.

    KV bytes of a token: 2 x layers x KV heads x head size x bytes of an element (keys and values).
    """
    steps = [blueprint.step(key) for key in variant.step_keys]
    engine = next(_config(step) for step in steps if step.kind is StepKind.ENGINE)
    own, build = _object(engine, "draftyard"), _object(engine, "build_config")
    tokens = _number(own, "kv_cache_tokens")
    parts: list[MemoryPart] = []
    for step in steps:
        if step.kind is StepKind.CHECKPOINT:
            item = _activation_bytes(_config(step), variant.gpu)
            role = str(step.parameters["role"])
            role = f"target with {role}" if role in ("medusa", "eagle") else role
            parts.extend(_checkpoint_parts(role, _config(step), tokens, item))
    pretrained = _object(engine, "pretrained_config")
    parts.extend(_step_parts(pretrained, build, _activation_bytes(pretrained, variant.gpu)))
    return VariantMemory(variant.name, tuple(parts))


def _explain_step(
    step: Step, blueprint: Blueprint, have: frozenset[str], before: Mapping[str, Step]
) -> StepExplanation:
    changes: tuple[Change, ...] = ()
    state = StepState.HAVE if step.key in have else StepState.MISSING
    old = before.get(step.label)
    if state is StepState.MISSING and old is not None and old.key != step.key:
        state = StepState.CHANGED
        changes = _changes(old, step, blueprint)
    return StepExplanation(step.label, step.kind.value, step.key, state, changes, _call(step))


def _changes(old: Step, new: Step, blueprint: Blueprint) -> tuple[Change, ...]:
    """Differing leaves under their recipe names; a value that an artefact holds twice is told once."""
    left = {**dict(_leaves(old.parameters, "")), **dict(_leaves(old.toolchain, "toolchain"))}
    right = {**dict(_leaves(new.parameters, "")), **dict(_leaves(new.toolchain, "toolchain"))}
    found: dict[str, Change] = {}
    for path in sorted(set(left) | set(right)):
        if left.get(path) != right.get(path):
            name = _RECIPE_WORDS.get(path, path)
            found.setdefault(name, Change(name, left.get(path, ""), right.get(path, "")))
    if old.inputs != new.inputs:
        labels = {step.key: step.label for step in blueprint.steps}
        for index, key in enumerate(new.inputs):
            previous = old.inputs[index] if index < len(old.inputs) else ""
            if previous != key:
                name = labels.get(key, "contents of the model")
                found.setdefault(name, Change(name, previous, key))
    return tuple(found.values())


def _leaves(value: Json, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, str(value)


def _short(text: str) -> str:
    """Keys and digests are long; twelve digits tell them apart."""
    is_digest = len(text) == 64 and all(character in "0123456789abcdef" for character in text)
    return text[:12] if is_digest else text


def _call(step: Step) -> str:
    """What runs; the makers of this version work inside the process."""
    if step.kind is StepKind.CALIBRATION:
        return f"calibrate {step.parameters['role']} on {step.parameters['samples']} texts at most (in process)"
    if step.kind is StepKind.CHECKPOINT:
        config = _config(step)
        kind = f"FP8 and {config['dtype']}" if is_fp8(config) else config["dtype"]
        return f"convert {step.parameters['role']} to {kind} in {world_size(config)} files (in process)"
    if step.kind is StepKind.ENGINE:
        return f"compile for lane {step.parameters['lane']} on {step.parameters['gpu']} (in process)"
    return "package models, tokenizer and engine (in process)"


def _activation_bytes(config: Mapping[str, Json], gpu: Gpu) -> int:
    """Bytes of one activation; on a CPU the reference lane keeps float32."""
    return _FLOAT32_BYTES if gpu is Gpu.CPU else _ITEM_BYTES[str(config["dtype"])]


def _cached_bytes(config: Mapping[str, Json], gpu: Gpu) -> int:
    """Bytes of one cached key or value; on a CPU the reference lane rounds to FP8, but keeps float32."""
    return 1 if has_fp8_cache(config) and gpu is not Gpu.CPU else _activation_bytes(config, gpu)


def _checkpoint_parts(role: str, config: Mapping[str, Json], tokens: int, item: int) -> Iterator[MemoryPart]:
    weights = 0
    for rank in range(world_size(config)):
        for kind, shape in promised_tensors(config, rank).values():
            elements = 1
            for extent in shape:
                elements *= extent
            weights += elements * kind.item_bytes
    yield MemoryPart(f"{role} weights", weights, f"all tensors of {world_size(config)} ranks")
    yield _cache_part(role, config, tokens, item)
    if "eagle_net_config" in config:
        yield _cache_part("eagle network", _object(config, "eagle_net_config"), tokens, item)


def _cache_part(role: str, config: Mapping[str, Json], tokens: int, item: int) -> MemoryPart:
    layers, heads = _number(config, "num_hidden_layers"), _number(config, "num_key_value_heads")
    head_size = _number(config, "head_size")
    token_bytes = 2 * layers * heads * head_size * item
    formula = f"{tokens} tokens x {token_bytes} bytes (2 x {layers} layers x {heads} heads x {head_size} x {item})"
    return MemoryPart(f"{role} KV cache", tokens * token_bytes, formula)


def _step_parts(config: Mapping[str, Json], build: Mapping[str, Json], item: int) -> Iterator[MemoryPart]:
    batch, draft = _number(build, "max_batch_size"), _number(build, "max_draft_len")
    vocabulary, step_tokens = _number(config, "vocab_size"), _number(build, "max_num_tokens")
    rows = batch * (draft + 1)
    yield MemoryPart("logits", rows * vocabulary * _FLOAT32_BYTES, f"{rows} rows x {vocabulary} x {_FLOAT32_BYTES}")
    hidden, inner = _number(config, "hidden_size"), _number(config, "intermediate_size")
    width = 4 * hidden + 3 * inner
    formula = f"estimate: {step_tokens} tokens x (4 x {hidden} + 3 x {inner}) x {item}"
    yield MemoryPart("activations", step_tokens * width * item, formula)


def _config(step: Step) -> Mapping[str, Json]:
    return _object(step.parameters, "config")


def _object(values: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    value = values[key]
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is {value!r}, not an object")
    return value


def _number(values: Mapping[str, Json], key: str) -> int:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} is {value!r}, not a whole number")
    return value
