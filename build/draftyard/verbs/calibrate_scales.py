"""Makes a calibration: runs a model over texts and records its largest activations, one layer in memory at a time."""

from pathlib import Path

from draftyard.doors.calibration_texts import encode_texts, find_calibration_files, read_calibration_texts
from draftyard.doors.config_files import write_config
from draftyard.doors.tensors import free_bytes
from draftyard.nouns.blueprint import Step
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.rules.fp8_scales import ranges_json
from draftyard.rules.trtllm import integer_of, object_of
from draftyard.verbs.fp8_conversion import RANGES_NAME
from draftyard.verbs.inspect import inspect
from draftyard.verbs.making import Workplace
from draftyard.verbs.portions import model_portion
from draftyard.verbs.source_checkpoint import SourceCheckpoint


def make_calibration(step: Step, workplace: Workplace) -> tuple[str, ...]:
    """Fill the staging directory with `amax.json`; returns notes.

    The step's sources are the model and the texts. Memory is one layer's weights in float32 and a few thousand tokens'
    activations; the residual stream of all texts lies in a file meanwhile. Failure when model or texts are not those
    that were planned, or cannot be run.
    """
    from draftyard.engine.calibrator import measure_ranges  # torch takes seconds to import

    directory, texts_path = workplace.source_paths
    samples = _samples(step, directory, texts_path)
    model = inspect(directory, allow_pickle=step.parameters.get("allow_pickle") is True)
    if model.digest not in step.inputs:
        raise Failure(f"{directory} changed since the plan was made", "plan again, and leave the model alone meanwhile")
    config = object_of(step.parameters, "config")
    _check_space(sum(len(sample) for sample in samples) * model.network.hidden_size * 4, workplace.staging)
    ranges = measure_ranges(
        SourceCheckpoint(model_portion(model), config),
        config,
        samples,
        workplace.staging / "residual-stream",
        workplace.progress,
    )
    write_config(workplace.staging / RANGES_NAME, ranges_json(ranges))
    silent = sum(value is None for found in ranges.inputs.values() for value in found)
    notes = [f"{ranges.samples} texts, {ranges.tokens} tokens"]
    if silent:
        notes.append(f"{silent} inputs of experts saw no token")
    return tuple(notes)


def _check_space(needed: int, directory: Path) -> None:
    """Of the residual stream: a mapped file that the disk has no room for would end the process."""
    free = free_bytes(directory)
    if free < needed:
        raise Failure(
            f"the activations of the calibration need {needed} bytes of disk, {free} are free",
            "free disk space, or lower quantisation.calibration.samples or max_tokens",
            ExitCode.ENVIRONMENT,
        )


def _samples(step: Step, directory: Path, texts_path: Path) -> tuple[tuple[int, ...], ...]:
    files = find_calibration_files(texts_path)
    if files.digest != step.parameters["prompts"]:
        raise Failure(
            f"{texts_path} changed since the plan was made", "plan again, and leave the texts alone meanwhile"
        )
    most, max_tokens = integer_of(step.parameters, "samples"), integer_of(step.parameters, "max_tokens")
    texts = read_calibration_texts(files, str(step.parameters["text_field"]), most)
    samples = encode_texts(directory, texts, max_tokens)
    if not samples:
        raise Failure(f"no text of {texts_path} has a token", "give longer texts")
    return samples
