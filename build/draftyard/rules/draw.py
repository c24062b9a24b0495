"""Draws the blueprint: what is to be made for a recipe, each artefact once, in an order that can be followed."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import product

from draftyard.nouns.blueprint import Blueprint, Step, StepKind, Variant
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem, raise_problems
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.recipe import DraftTargetSpeculator, Recipe, Speculator
from draftyard.nouns.source import Source
from draftyard.nouns.toolchain import Toolchain
from draftyard.rules.agree import position_problems
from draftyard.rules.capability import capability_problems, gpus_of
from draftyard.rules.shards import sharding_problems
from draftyard.rules.triton_repository import repository_parameters
from draftyard.rules.trtllm import checkpoint_config, reference_engine_config


@dataclass(frozen=True, slots=True)
class Way:
    """One way to decode: a short name, its speculator (None: plain), and the draft model it needs."""

    name: str
    speculator: Speculator | None
    draft: Source | None


@dataclass(frozen=True, slots=True)
class _Table:
    """What every step is drawn from; `steps` grows in the order of drawing."""

    recipe: Recipe
    target: Source
    toolchain: Toolchain
    guests_digest: str
    steps: dict[str, Step] = field(default_factory=dict)

    def add(
        self, kind: StepKind, label: str, parameters: dict[str, Json], inputs: tuple[str, ...], source: str = ""
    ) -> Step:
        """Each artefact once: a step drawn again is the step that is there."""
        step = Step(kind, label, parameters, inputs, self.toolchain.model_dump(), (source,) if source else ())
        return self.steps.setdefault(step.key, step)


def draw(
    recipe: Recipe, target: Source, drafts: tuple[Source, ...], toolchain: Toolchain, guests_digest: str
) -> Blueprint:
    """The blueprint of a recipe. `drafts` are the models of its draft_target speculators, in their order.

    Failure lists every combination that is not built, every size that does not fit. Pure: the same values give the same
    keys.
    """
    raise_problems(recipe_problems(recipe, target.network, tuple(draft.network for draft in drafts)))
    table = _Table(recipe, target, toolchain, guests_digest)
    variants = tuple(
        _variant(table, way, lane, gpu, precision)
        for precision, lane in product(recipe.precisions, recipe.lanes)
        for gpu in gpus_of(lane, recipe.gpus)
        for way in ways(recipe, drafts)
    )
    return Blueprint(recipe.name, tuple(table.steps.values()), variants)


def recipe_problems(recipe: Recipe, target: Network, drafts: tuple[Network, ...]) -> list[Problem]:
    """Why this recipe cannot be built from these networks; empty when it can. No weights are needed."""
    problems = capability_problems(recipe, target.family, tuple(draft.family for draft in drafts))
    problems.extend(sharding_problems(target, recipe.target.tp_size, recipe.target.pp_size, "target"))
    problems.extend(position_problems(target, "target", recipe.limits))
    for speculator, draft in zip(draft_speculators(recipe), drafts, strict=True):
        problems.extend(sharding_problems(draft, speculator.tp_size, 1, "draft"))
        problems.extend(position_problems(draft, "draft", recipe.limits))
    return problems


def draft_speculators(recipe: Recipe) -> tuple[DraftTargetSpeculator, ...]:
    """The speculators that need a model of their own."""
    return tuple(one for one in recipe.speculators if isinstance(one, DraftTargetSpeculator))


def ways(recipe: Recipe, drafts: tuple[Source, ...]) -> tuple[Way, ...]:
    """Plain decoding first, then each speculator; several of a kind are numbered from the second on."""
    found = [Way(SpeculatorKind.NONE.value, None, None)]
    seen: Counter[str] = Counter()
    models = iter(drafts)
    for speculator in recipe.speculators:
        kind = speculator.kind.value
        seen[kind] += 1
        name = kind if seen[kind] == 1 else f"{kind}{seen[kind]}"
        found.append(Way(name, speculator, next(models) if isinstance(speculator, DraftTargetSpeculator) else None))
    return tuple(found)


def _variant(table: _Table, way: Way, lane: Lane, gpu: Gpu, precision: Precision) -> Variant:
    recipe = table.recipe
    tp_size = recipe.target.tp_size
    name = f"{way.name}-{precision}-{gpu}-tp{tp_size}" + ("" if lane is Lane.REFERENCE else f"-{lane}")
    target = _checkpoint(table, "target", table.target, precision, tp_size, recipe.target.pp_size)
    checkpoints = [target]
    if way.draft is not None and isinstance(way.speculator, DraftTargetSpeculator):
        checkpoints.append(_checkpoint(table, "draft", way.draft, precision, way.speculator.tp_size, 1, way.name))
    engine = _engine(table, name, way, lane, gpu, tuple(checkpoints))
    repository = _repository(table, name, way, lane, engine)
    return Variant(
        name=name,
        lane=lane,
        speculator=SpeculatorKind.NONE if way.speculator is None else SpeculatorKind(way.speculator.kind),
        precision=precision,
        gpu=gpu,
        tp_size=tp_size,
        step_keys=tuple(step.key for step in (*checkpoints, engine, repository)),
    )


def _checkpoint(
    table: _Table, role: str, source: Source, precision: Precision, tp_size: int, pp_size: int, way: str = ""
) -> Step:
    config = checkpoint_config(source.network, precision, tp_size, pp_size)
    label = f"checkpoint {role}{f' {way}' if way else ''} {precision} tp{tp_size} pp{pp_size}"
    return table.add(StepKind.CHECKPOINT, label, {"role": role, "config": config}, (source.digest,), source=source.path)


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
    )
    parameters: dict[str, Json] = {"lane": lane.value, "gpu": gpu.value, "config": config}
    return table.add(StepKind.ENGINE, f"engine {name}", parameters, tuple(step.key for step in checkpoints))


def _repository(table: _Table, name: str, way: Way, lane: Lane, engine: Step) -> Step:
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
    )
    inputs = (engine.key, target.tokenizer.digest)
    return table.add(StepKind.REPOSITORY, f"repository {name}", parameters, inputs, source=target.path)


def kv_cache_tokens(recipe: Recipe) -> int:
    """Tokens of the KV pool: as the recipe says, else room for a full batch of the longest sequences."""
    return recipe.serving.kv_cache_tokens or recipe.limits.max_batch_size * recipe.limits.max_seq_len
