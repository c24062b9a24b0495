"""Makes an engine of the reference lane: a checked checkpoint, its sizes, and beside it the draft's."""

from collections.abc import Mapping
from pathlib import Path

from draftyard.doors.config_files import read_config, write_config
from draftyard.doors.tensors import link_tensor_file, read_tensor_headers
from draftyard.nouns.blueprint import Step
from draftyard.nouns.digest import Json, canonical
from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.tensor import name_list
from draftyard.rules.trtllm import draft_engine_config, world_size
from draftyard.rules.trtllm_heads import promised_tensors
from draftyard.verbs.making import Workplace

# Where the checkpoint beside the target's goes.
BESIDE = {
    SpeculatorKind.DRAFT_TARGET.value: "draft",
    SpeculatorKind.EAGLE3.value: "speculator",
    SpeculatorKind.MTP.value: "speculator",
}
_REBUILD = "remove this checkpoint from the store and build again"


def make_engine(step: Step, workplace: Workplace) -> tuple[str, ...]:
    """Fill the staging directory with an engine's `config.json` and `rank{r}.safetensors`; returns notes.

    Weights are hard links to the checkpoint's files. A second checkpoint goes into `draft/` (a model of its own) or
    `speculator/` (EAGLE-3, MTP). Failure when a checkpoint is incomplete or not the one the engine was planned for.
    """
    config = step.parameters["config"]
    if not isinstance(config, Mapping):
        raise ValueError("an engine step carries the complete config.json under `config`")
    beside = _check_inputs(config, len(step.inputs))
    target = workplace.input_path(step.inputs[0])
    if canonical(read_config(target / "config.json")) != canonical(config["pretrained_config"]):
        raise Failure("the checkpoint's config.json is not the one the engine was planned for", _REBUILD)
    notes = [_install(target, workplace.staging, config)]
    workplace.progress(0.5, "target")
    if beside is not None:
        checkpoint = workplace.input_path(step.inputs[1])
        (workplace.staging / beside).mkdir()
        draft_config = draft_engine_config(config, read_config(checkpoint / "config.json"))
        notes.append(f"{beside}: " + _install(checkpoint, workplace.staging / beside, draft_config))
    workplace.progress(1.0, "engine")
    return tuple(notes)


def _check_inputs(config: Mapping[str, Json], inputs: int) -> str | None:
    """The folder of a second checkpoint, when the speculator has one."""
    own = config["draftyard"]
    speculator = own["speculator"] if isinstance(own, Mapping) else None
    kind = speculator["kind"] if isinstance(speculator, Mapping) else None
    beside = BESIDE.get(kind) if isinstance(kind, str) else None
    wanted = 1 if beside is None else 2
    if inputs != wanted:
        raise ValueError(f"an engine with speculator {kind} is made of {wanted} checkpoints, not {inputs}")
    return beside


def _install(checkpoint: Path, directory: Path, config: Mapping[str, Json]) -> str:
    """Check each rank's file against what its config promises, link it, and write the engine's config last."""
    pretrained = config["pretrained_config"]
    if not isinstance(pretrained, Mapping):
        raise ValueError("pretrained_config must be an object")
    ranks = range(world_size(pretrained))
    for rank in ranks:
        name = f"rank{rank}.safetensors"
        _check_file(checkpoint / name, pretrained, rank)
        link_tensor_file(checkpoint / name, directory / name)
    write_config(directory / "config.json", config)
    return f"{len(ranks)} rank files linked"


def _check_file(path: Path, pretrained: Mapping[str, Json], rank: int) -> None:
    found = {name: (header.type, header.shape) for name, header in read_tensor_headers(path)[0].items()}
    expected = promised_tensors(pretrained, rank)
    if found != expected:
        names = sorted(name for name in set(found) | set(expected) if found.get(name) != expected.get(name))
        raise Failure(f"{path.name} is not what its config.json promises: {name_list(names)}", _REBUILD)
