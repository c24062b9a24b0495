"""Finds what a Triton server would refuse, or silently do otherwise, in a set of model configurations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from draftyard.nouns.errors import Problem
from draftyard.nouns.repository import ALWAYS, EnsembleStep, ModelConfig, ModelName, Repository, Tensor
from draftyard.rules.triton_parameters import parameter_problems

_EDITED = "generate the repository again, or undo the change"


def repository_problems(repository: Repository) -> tuple[Problem, ...]:
    """Everything wrong with the models one by one and together; empty when a server can load and stream them."""
    names = [model.name for model in repository.models]
    wanted = sorted(name.value for name in ALWAYS)
    if sorted(set(names) - {ModelName.DRAFT_ENGINE.value}) != wanted or len(set(names)) < len(names):
        return (Problem(f"the repository has the models {sorted(names)}", f"it needs {', '.join(wanted)}"),)
    found: list[Problem] = []
    for model in repository.models:
        found.extend(_model_problems(model))
    found.extend(_draft_problems(repository))
    found.extend(_decoupled_problems(repository))
    found.extend(_logits_problems(repository))
    found.extend(ensemble_problems(repository.model(ModelName.ENSEMBLE), repository))
    return tuple(found)


def _model_problems(model: ModelConfig) -> Iterable[Problem]:
    if model.max_batch_size < 1:
        yield Problem(f"{model.name}: max_batch_size is {model.max_batch_size}", "give at least 1")
    for tensors in (model.tensors.inputs, model.tensors.outputs):
        listed = [tensor.name for tensor in tensors]
        twice = sorted({name for name in listed if listed.count(name) > 1})
        if twice:
            yield Problem(f"{model.name}: declared twice: {', '.join(twice)}", _EDITED)
    if model.queue is not None and model.queue.default_timeout_us < 1:
        yield Problem(f"{model.name}: the default time-out is 0, so no request can set one", "give a time above 0")
    if "${" in repr(model):
        yield Problem(f"{model.name}: a placeholder was left in", "fill it in")
    instances = 0 if model.steps else 1
    if model.instance_count != instances:
        yield Problem(f"{model.name}: {model.instance_count} instances", f"{instances} keeps streams in order")
    yield from parameter_problems(model.name, dict(model.parameters))


def _draft_problems(repository: Repository) -> Iterable[Problem]:
    """A draft's engine and the entry that drafts with it go together; both engines take and give the same tensors."""
    key = "tensorrt_llm_draft_model_name"
    names = {model.name for model in repository.models}
    asked = dict(repository.model(ModelName.ENTRY).parameters).get(key)
    if asked is None and ModelName.DRAFT_ENGINE in names:
        yield Problem(f"{ModelName.DRAFT_ENGINE} is there, but the entry has no {key}", _EDITED)
    if asked is not None and asked not in names:
        yield Problem(f"{key} is {asked}, which is no model of the repository", _EDITED)
    if asked is None or asked not in names:
        return
    draft, target = repository.model(asked), repository.model(ModelName.ENGINE)
    if (draft.tensors, draft.decoupled) != (target.tensors, target.decoupled):
        yield Problem(f"{draft.name} and {target.name} differ in tensors or in decoupled", _EDITED)
    devices = [dict(model.parameters).get("gpu_device_ids") for model in (target, draft)]
    if None in devices:
        yield Problem("target and draft share a server, so each needs gpu_device_ids", _EDITED)


def _decoupled_problems(repository: Repository) -> Iterable[Problem]:
    engine, entry = repository.model(ModelName.ENGINE), repository.model(ModelName.ENTRY)
    if engine.decoupled != entry.decoupled:
        yield Problem(
            f"decoupled is {engine.decoupled} in {engine.name} and {entry.decoupled} in {entry.name}",
            "give both the same value",
        )
    for name in (ModelName.PREPROCESSING, ModelName.POSTPROCESSING):
        if repository.model(name).decoupled:
            yield Problem(f"{name} is decoupled, but answers once", "take the policy out")


def _logits_problems(repository: Repository) -> Iterable[Problem]:
    """The type of a tensor of the same name is the same in the engine and in both entries."""
    engine = {tensor.name: tensor for tensor in repository.model(ModelName.ENGINE).tensors.outputs}
    for name in (ModelName.ENSEMBLE, ModelName.ENTRY):
        for tensor in repository.model(name).tensors.outputs:
            other = engine.get(tensor.name)
            if other is not None and other.type != tensor.type:
                yield Problem(f"{tensor.name} is {other.type} in tensorrt_llm and {tensor.type} in {name}", _EDITED)


@dataclass
class _Flow:
    """What is known of an ensemble's tensors: its inputs, then what each step adds."""

    known: dict[str, Tensor]
    used: set[str] = field(default_factory=set)
    internal: set[str] = field(default_factory=set)


def ensemble_problems(ensemble: ModelConfig, repository: Repository) -> tuple[Problem, ...]:
    """Walk the maps: each tensor exists on both sides with one type and compatible dims, none is lost or made twice.

    These are the server's own checks at load, from Triton core's ensemble_utils.cc (2.51).
    """
    models = {model.name: model for model in repository.models}
    flow = _Flow({tensor.name: tensor for tensor in ensemble.tensors.inputs})
    found: list[Problem] = []
    for step in ensemble.steps:
        model = models.get(step.model)
        if model is None:
            found.append(Problem(f"{ensemble.name}: there is no model {step.model}", _EDITED))
            continue
        if ensemble.max_batch_size > model.max_batch_size:
            sizes = f"{ensemble.max_batch_size}, that of {model.name} only {model.max_batch_size}"
            found.append(Problem(f"{ensemble.name}: its max_batch_size is {sizes}", "give both the same value"))
        found.extend(_input_problems(ensemble, step, model, flow))
        found.extend(_output_problems(ensemble, step, model, flow))
    found.extend(_end_problems(ensemble, flow))
    return tuple(found)


def _input_problems(ensemble: ModelConfig, step: EnsembleStep, model: ModelConfig, flow: _Flow) -> Iterable[Problem]:
    inputs = {tensor.name: tensor for tensor in model.tensors.inputs}
    mapped = dict(step.inputs)
    if len(mapped) < len(step.inputs):
        yield Problem(f"{ensemble.name}: an input of {model.name} is mapped twice", _EDITED)
    missing = sorted(name for name, tensor in inputs.items() if not tensor.optional and name not in mapped)
    if missing:
        yield Problem(f"{ensemble.name}: {model.name} needs {', '.join(missing)}", "map them")
    for own, outer in step.inputs:
        flow.used.add(outer)
        if outer not in flow.known:
            yield Problem(f"{ensemble.name}: nothing before {model.name} gives {outer}", _EDITED)
        elif own not in inputs:
            yield Problem(f"{ensemble.name}: {model.name} has no input {own}", _EDITED)
        else:
            yield from _match_problems(ensemble, flow.known[outer], outer, inputs[own], model)


def _output_problems(ensemble: ModelConfig, step: EnsembleStep, model: ModelConfig, flow: _Flow) -> Iterable[Problem]:
    outputs = {tensor.name: tensor for tensor in model.tensors.outputs}
    declared = {tensor.name: tensor for tensor in ensemble.tensors.outputs}
    for own, outer in step.outputs:
        if own not in outputs:
            yield Problem(f"{ensemble.name}: {model.name} has no output {own}", _EDITED)
            continue
        if outer in flow.known:
            yield Problem(f"{ensemble.name}: {outer} is given twice", _EDITED)
        if outer in declared:
            yield from _match_problems(ensemble, declared[outer], outer, outputs[own], model)
        flow.known[outer] = outputs[own]
        flow.internal.add(outer)


def _match_problems(
    ensemble: ModelConfig, outer: Tensor, outer_name: str, own: Tensor, model: ModelConfig
) -> Iterable[Problem]:
    between = f"{ensemble.name}: {outer_name} and {own.name} of {model.name}"
    if outer.type != own.type:
        yield Problem(f"{between} are {outer.type} and {own.type}", _EDITED)
    if not compatible_dims(outer.dims, own.dims):
        yield Problem(f"{between} have dims {list(outer.dims)} and {list(own.dims)}", _EDITED)


def compatible_dims(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Equal rank, and each pair of extents is equal or one of them is -1."""
    return len(first) == len(second) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(first, second, strict=True)
    )


def _end_problems(ensemble: ModelConfig, flow: _Flow) -> Iterable[Problem]:
    given = {tensor.name for tensor in ensemble.tensors.outputs}
    for name in sorted(given - flow.internal):
        yield Problem(f"{ensemble.name}: no step gives {name}", _EDITED)
    for name in sorted(set(flow.known) - flow.used - given):
        yield Problem(f"{ensemble.name}: {name} is used by no step", _EDITED)


def placeholder_problems(texts: Mapping[str, str]) -> tuple[Problem, ...]:
    """Placeholders in the texts of files, each with its line; keys are the names of the files."""
    return tuple(
        Problem(f"{name}:{number}: {line.strip()}", "a placeholder was left in: fill it in")
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if "${" in line
    )
