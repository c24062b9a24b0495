"""Draws the blueprint: what is to be made for a recipe, each artefact once, in an order that can be followed."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import product

from draftyard.nouns.activation_ranges import CalibrationTexts
from draftyard.nouns.blueprint import Blueprint, Step, StepKind, Variant
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem, raise_problems
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.policy import Policy
from draftyard.nouns.recipe import DraftTargetSpeculator, Recipe, Speculator
from draftyard.nouns.source import Source
from draftyard.nouns.speculator_source import SpeculatorNetwork, SpeculatorSource
from draftyard.nouns.tensor import TensorType
from draftyard.nouns.toolchain import Toolchain
from draftyard.rules.agree import position_problems
from draftyard.rules.build_refusals import build_problems
from draftyard.rules.build_request import build_parameters, draw_build
from draftyard.rules.capability import capability_problems, gpus_of
from draftyard.rules.draw_heads import draw_heads, has_heads, heads_problems, medusa_heads
from draftyard.rules.draw_llmapi import LlmapiRequest, llmapi_problems, llmapi_settings
from draftyard.rules.lane_limits import lane_problems
from draftyard.rules.quantisation import form_problems, fp8_form, source_problems
from draftyard.rules.shards import sharding_problems
from draftyard.rules.triton_repository import repository_parameters
from draftyard.rules.trtllm import checkpoint_config, object_of, reference_engine_config


@dataclass(frozen=True, slots=True)
class Way:
    """One way to decode: a short name, its speculator (None: plain), and the draft model or the heads it needs."""

    name: str
    speculator: Speculator | None
    draft: Source | None = None
    heads: SpeculatorSource | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    """What every step is drawn from; `steps` grows in the order of drawing, `problems` are of what was drawn."""

    recipe: Recipe
    target: Source
    toolchain: Toolchain
    guests_digest: str
    texts: CalibrationTexts | None = None
    policy: Policy | None = None
    steps: dict[str, Step] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(
        self,
        kind: StepKind,
        label: str,
        parameters: dict[str, Json],
        inputs: tuple[str, ...],
        sources: tuple[str, ...] = (),
    ) -> Step:
        """Each artefact once: a step drawn again is the step that is there."""
        step = Step(kind, label, parameters, inputs, self.toolchain.model_dump(), sources)
        return self.steps.setdefault(step.key, step)


def draw(
    recipe: Recipe,
    target: Source,
    drafts: tuple[Source, ...],
    toolchain: Toolchain,
    guests_digest: str,
    texts: CalibrationTexts | None = None,
    heads: tuple[SpeculatorSource, ...] = (),
    policy: Policy | None = None,
) -> Blueprint:
    """The blueprint of a recipe. `drafts` are the models of its draft_target speculators, `heads` the weights of those
    that hang on the target's features, each in the order of the recipe.

    `texts` are those of `quantisation.calibration`; `policy` goes into the repositories of variants that speculate.

    Failure lists every combination that is not built, every size that does not fit. Pure: the same values give the same
    keys.
    """
    networks = tuple(draft.network for draft in drafts), tuple(one.network for one in heads)
    raise_problems(recipe_problems(recipe, target.network, *networks))
    raise_problems([one for source, role in _models(target, drafts) for one in source_problems(recipe, source, role)])
    table = _Table(recipe, target, toolchain, guests_digest, texts, policy)
    variants = tuple(
        _variant(table, way, lane, gpu, precision)
        for precision, lane in product(recipe.precisions, recipe.lanes)
        for gpu in gpus_of(lane, recipe.gpus)
        for way in ways(recipe, drafts, heads)
        if way.speculator is None or way.speculator.built_in(precision)
    )
    raise_problems(table.problems)
    return Blueprint(recipe.name, tuple(table.steps.values()), variants)


def recipe_problems(
    recipe: Recipe, target: Network, drafts: tuple[Network, ...], heads: tuple[SpeculatorNetwork, ...] = ()
) -> list[Problem]:
    """Why this recipe cannot be built from these networks; empty when it can. No weights are needed."""
    problems = capability_problems(recipe, target.family, tuple(draft.family for draft in drafts))
    problems.extend(sharding_problems(target, recipe.target.tp_size, recipe.target.pp_size, "target"))
    problems.extend(position_problems(target, "target", recipe.limits))
    problems.extend(lane_problems(target, "target", recipe.lanes, recipe.limits))
    for speculator, draft in zip(draft_speculators(recipe), drafts, strict=True):
        problems.extend(sharding_problems(draft, speculator.tp_size, 1, "draft"))
        problems.extend(position_problems(draft, "draft", recipe.limits))
        problems.extend(lane_problems(draft, "draft", recipe.lanes, recipe.limits))
    problems.extend(heads_problems(recipe, target, heads))
    if Precision.FP8 in recipe.precisions:
        problems.extend(form_problems(target, recipe.quantisation, "target", recipe.target.pp_size))
        for draft in drafts:
            problems.extend(form_problems(draft, recipe.quantisation, "draft"))
    return problems


def draft_speculators(recipe: Recipe) -> tuple[DraftTargetSpeculator, ...]:
    """The speculators that need a model of their own."""
    return tuple(one for one in recipe.speculators if isinstance(one, DraftTargetSpeculator))


def ways(recipe: Recipe, drafts: tuple[Source, ...], heads: tuple[SpeculatorSource, ...] = ()) -> tuple[Way, ...]:
    """Plain decoding first, then each speculator; several of a kind are numbered from the second on."""
    found = [Way(SpeculatorKind.NONE.value, None)]
    seen: Counter[str] = Counter()
    models, weights = iter(drafts), iter(heads)
    for speculator in recipe.speculators:
        kind = speculator.kind.value
        seen[kind] += 1
        # Set apart, for eagle3 is a kind of its own and not the third eagle.
        name = kind if seen[kind] == 1 else f"{kind}_{seen[kind]}"
        draft = next(models) if isinstance(speculator, DraftTargetSpeculator) else None
        found.append(Way(name, speculator, draft, next(weights) if has_heads(speculator) else None))
    return tuple(found)


def _variant(table: _Table, way: Way, lane: Lane, gpu: Gpu, precision: Precision) -> Variant:
    recipe = table.recipe
    tp_size = recipe.target.tp_size
    name = f"{way.name}-{precision}-{gpu}-tp{tp_size}" + ("" if lane is Lane.REFERENCE else f"-{lane}")
    if lane is Lane.LLMAPI:
        return _llmapi_variant(table, name, way, gpu, precision)
    checkpoints = _checkpoints(table, way, precision)
    engines = _engines(table, name, way, lane, gpu, tuple(checkpoints))
    repository = _repository(table, name, way, lane, engines, checkpoints[0])
    return Variant(
        name=name,
        lane=lane,
        speculator=SpeculatorKind.NONE if way.speculator is None else SpeculatorKind(way.speculator.kind),
        precision=precision,
        gpu=gpu,
        tp_size=tp_size,
        step_keys=(*_made_of(table, checkpoints), *(engine.key for engine in engines), repository.key),
    )


def _llmapi_variant(table: _Table, name: str, way: Way, gpu: Gpu, precision: Precision) -> Variant:
    """The lane executes models as they are: nothing is converted, and its one model is not packaged yet."""
    table.problems.extend(one for one in llmapi_problems(table.recipe, table.target) if one not in table.problems)
    request = LlmapiRequest(table.recipe, precision, way.speculator, kv_cache_tokens(table.recipe), table.policy)
    beside = way.draft or way.heads
    kind = SpeculatorKind.NONE if way.speculator is None else SpeculatorKind(way.speculator.kind)
    parameters: dict[str, Json] = {
        "lane": Lane.LLMAPI.value,
        "gpu": gpu.value,
        "speculator": kind.value,
        "settings": llmapi_settings(request),
    }
    sources = (table.target,) if beside is None else (table.target, beside)
    inputs, paths = tuple(one.digest for one in sources), tuple(one.path for one in sources)
    engine = table.add(StepKind.ENGINE, f"engine {name}", parameters, inputs, paths)
    return Variant(name, Lane.LLMAPI, kind, precision, gpu, table.recipe.target.tp_size, (engine.key,))


def _checkpoints(table: _Table, way: Way, precision: Precision) -> list[Step]:
    """The target's files first, with the heads in them where they are merged; then those of a draft or drafter."""
    recipe, source = table.recipe, table.target
    sizes = recipe.target.tp_size, recipe.target.pp_size
    merged = way.heads is not None and way.heads.kind in (SpeculatorKind.MEDUSA, SpeculatorKind.EAGLE)
    found = [_checkpoint(table, "target", source, precision, *sizes, way if merged else None)]
    if way.draft is not None and isinstance(way.speculator, DraftTargetSpeculator):
        found.append(_checkpoint(table, "draft", way.draft, precision, way.speculator.tp_size, 1, way))
    if way.heads is not None and not merged:
        base = object_of(found[0].parameters, "config")
        drawn = draw_heads(way.speculator, way.heads, source.network, base)
        parameters: dict[str, Json] = {"role": drawn.role, "config": drawn.config, **_permission(way.heads)}
        label = f"checkpoint {way.name} {base['dtype']}"
        found.append(table.add(StepKind.CHECKPOINT, label, parameters, (way.heads.digest,), (way.heads.path,)))
    return found


def _checkpoint(
    table: _Table, role: str, source: Source, precision: Precision, tp_size: int, pp_size: int, way: Way | None = None
) -> Step:
    """The checkpoint of a model; `way` is that of a draft, or of heads that go into the target's files."""
    name = role if way is None else f"{role} {way.name}"
    wishes = table.recipe.quantisation
    fp8 = fp8_form(source.weight_type, wishes, source.fp8) if precision is Precision.FP8 else None
    config = checkpoint_config(source.network, precision, tp_size, pp_size, fp8)
    parameters: dict[str, Json] = {"role": role, "config": config, **_permission(source)}
    inputs: tuple[str, ...] = (source.digest,)
    if fp8 is not None:
        parameters["quantisation"] = {
            "kv_scale": wishes.kv_scale.value,
            "uncalibrated_experts": wishes.uncalibrated_experts.value,
            "scales": "stored" if source.fp8 else "calibrated",
        }
        if source.fp8 is None:
            inputs = (source.digest, _calibration(table, role, name, source).key)
    label = f"checkpoint {name} {precision} tp{tp_size} pp{pp_size}"
    if way is None or way.heads is None:
        return table.add(StepKind.CHECKPOINT, label, parameters, inputs, (source.path,))
    drawn = draw_heads(way.speculator, way.heads, source.network, config)
    parameters |= {"role": drawn.role, "config": drawn.config, **_permission(source, way.heads)}
    # A calibration stays the last input.
    inputs = (source.digest, way.heads.digest, *inputs[1:])
    return table.add(StepKind.CHECKPOINT, label, parameters, inputs, (source.path, way.heads.path))


def _calibration(table: _Table, role: str, name: str, source: Source) -> Step:
    """The ranges of a model's activations; sizes of ranks and what is left out of FP8 change nothing about them."""
    wishes = table.recipe.quantisation.calibration
    if wishes is None or table.texts is None:
        raise ValueError("a calibration needs texts")
    precision = {TensorType.F16: Precision.FP16, TensorType.BF16: Precision.BF16}.get(source.weight_type)
    parameters: dict[str, Json] = {
        "role": role,
        "config": checkpoint_config(source.network, precision or Precision.FP32, 1, 1),
        "prompts": table.texts.digest,
        "text_field": wishes.text_field,
        "samples": wishes.samples,
        "max_tokens": wishes.max_tokens,
        **_permission(source),
    }
    sources = (source.path, table.texts.path)
    return table.add(StepKind.CALIBRATION, f"calibration {name}", parameters, (source.digest,), sources)


def _permission(*sources: Source | SpeculatorSource) -> dict[str, Json]:
    """The recipe allowed pickles, or these sources could not have been read; it goes on to whoever makes the step."""
    return {"allow_pickle": True} if any(source.pickled for source in sources) else {}


def _models(target: Source, drafts: tuple[Source, ...]) -> list[tuple[Source, str]]:
    return [(target, "target"), *((draft, "draft") for draft in drafts)]


def _made_of(table: _Table, checkpoints: list[Step]) -> tuple[str, ...]:
    """Keys of the checkpoints, each after its calibration, where it has one."""
    keys = [key for step in checkpoints for key in (*step.inputs, step.key)]
    return tuple(dict.fromkeys(key for key in keys if key in table.steps))


def _engines(
    table: _Table, name: str, way: Way, lane: Lane, gpu: Gpu, checkpoints: tuple[Step, ...]
) -> tuple[Step, ...]:
    """The target's engine first. With the tensorrt lane an external draft is an engine of its own."""
    if lane is Lane.REFERENCE:
        return (_engine(table, name, way, lane, gpu, checkpoints),)
    speculators = (way.speculator, None)
    return tuple(
        _plan_engine(table, name if index == 0 else f"{name} draft", gpu, checkpoint, speculators[index])
        for index, checkpoint in enumerate(checkpoints)
    )


def _plan_engine(table: _Table, name: str, gpu: Gpu, checkpoint: Step, speculator: Speculator | None) -> Step:
    config = object_of(checkpoint.parameters, "config")
    build = draw_build(config, gpu, table.recipe.limits, speculator, table.recipe.trtllm_build)
    table.problems.extend(one for one in build_problems(build) if one not in table.problems)
    return table.add(StepKind.ENGINE, f"engine {name}", build_parameters(build), (checkpoint.key,))


def _engine(table: _Table, name: str, way: Way, lane: Lane, gpu: Gpu, checkpoints: tuple[Step, ...]) -> Step:
    checkpoint = checkpoints[0].parameters["config"]
    if not isinstance(checkpoint, dict):
        raise ValueError("a checkpoint step carries the complete config.json under `config`")
    config = reference_engine_config(
        checkpoint=checkpoint,
        limits=table.recipe.limits,
        speculator=way.speculator,
        kv_cache_tokens=kv_cache_tokens(table.recipe),
        tensorrt_llm_version=table.toolchain.tensorrt_llm,
        heads=medusa_heads(checkpoints[0].parameters),
    )
    parameters: dict[str, Json] = {"lane": lane.value, "gpu": gpu.value, "config": config}
    return table.add(StepKind.ENGINE, f"engine {name}", parameters, tuple(step.key for step in checkpoints))


def _repository(table: _Table, name: str, way: Way, lane: Lane, engines: tuple[Step, ...], checkpoint: Step) -> Step:
    target = table.target
    parameters = repository_parameters(
        lane=lane,
        limits=table.recipe.limits,
        serving=table.recipe.serving,
        speculator=way.speculator,
        kv_cache_tokens=kv_cache_tokens(table.recipe),
        end_ids=target.end_ids,
        vocab_size=target.network.vocab_size,
        logits_dtype="float32",
        guests_digest=table.guests_digest,
        ranks=table.recipe.target.tp_size * table.recipe.target.pp_size,
        medusa_heads=medusa_heads(checkpoint.parameters) or None,
        policy=None if way.speculator is None else table.policy,
    )
    inputs = (*(engine.key for engine in engines), target.tokenizer.digest)
    return table.add(StepKind.REPOSITORY, f"repository {name}", parameters, inputs, (target.path,))


def kv_cache_tokens(recipe: Recipe) -> int:
    """Tokens of the KV pool: as the recipe says, else room for a full batch of the longest sequences."""
    return recipe.serving.kv_cache_tokens or recipe.limits.max_batch_size * recipe.limits.max_seq_len
