"""Makes an engine of the llmapi lane: the model's own files and the speculator's, and the settings that load them."""

import shutil
from pathlib import Path

from draftyard.doors.tensors import link_tensor_file
from draftyard.doors.yaml_text import write_yaml
from draftyard.nouns.blueprint import Step
from draftyard.nouns.errors import Failure
from draftyard.rules.draw_llmapi import SPECULATOR_PLACE, TARGET_PLACE, options_of
from draftyard.rules.trtllm import object_of
from draftyard.verbs.inspect import inspect, inspect_speculator
from draftyard.verbs.making import Workplace

MODEL_YAML, OPTIONS_YAML = "model.yaml", "llm_api_options.yaml"


def make_llmapi_engine(step: Step, workplace: Workplace) -> tuple[str, ...]:
    """Fill the staging directory with `target/`, `speculator/`, `model.yaml` and `llm_api_options.yaml`.

    Weights are linked, small files copied. `model.yaml` is what Triton's llmapi model reads; the options are for
    `trtllm-serve` and `trtllm-bench`. Failure when a model is not the one that was planned.
    """
    settings = object_of(step.parameters, "settings")
    role = str(step.parameters.get("speculator", ""))
    for place, directory in zip((TARGET_PLACE, SPECULATOR_PLACE), workplace.source_paths, strict=False):
        drafter = place == SPECULATOR_PLACE and role != "draft_target"
        found = inspect_speculator(directory).digest if drafter else inspect(directory).digest
        if found not in step.inputs:
            raise Failure(
                f"{directory} changed since the plan was made", "plan again, and leave the model alone meanwhile"
            )
        _take(directory, workplace.staging / place)
        workplace.progress(0.5 if place == TARGET_PLACE else 0.9, place)
    write_yaml(workplace.staging / MODEL_YAML, settings)
    write_yaml(workplace.staging / OPTIONS_YAML, options_of(settings))
    served = f"trtllm-serve {TARGET_PLACE} --extra_llm_api_options {OPTIONS_YAML}"
    return (f"serve in this directory with: {served}",)


def _take(source: Path, destination: Path) -> None:
    """Weights as links; all else of a model directory's top level as copies, for such files are edited in place."""
    destination.mkdir()
    for path in sorted(source.iterdir()):
        if path.suffix == ".safetensors":
            link_tensor_file(path.resolve(), destination / path.name)
        elif path.suffix in (".json", ".jinja", ".txt", ".model"):
            shutil.copyfile(path, destination / path.name)
