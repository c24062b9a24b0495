"""Tells what FP8 costs: how often the target's next token changes against its 16-bit checkpoint, and how far."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.calibration_texts import encode_texts, find_calibration_files, read_calibration_texts
from draftyard.doors.config_files import read_config
from draftyard.doors.store import Store, StoreRoots
from draftyard.doors.tensors import open_tensor_file
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import Failure
from draftyard.nouns.fidelity_figures import Fidelity
from draftyard.rules.quantisation import is_fp8
from draftyard.rules.trtllm import object_of
from draftyard.verbs.drawing import draw_recipe


@dataclass(frozen=True, slots=True)
class FidelityOptions:
    """`texts` None takes the recipe's prompts of verify, which no calibration should have seen."""

    out: Path
    texts: Path | None = None
    samples: int = 32
    max_tokens: int = 256


def fidelity(recipe: Path, options: FidelityOptions, progress: Callable[[float, str], None]) -> Fidelity:
    """Compare the built FP8 checkpoint of a recipe's target with its 16-bit one, on the CPU.

    Failure when the recipe has not both precisions, or one is not built yet.
    """
    from draftyard.engine.fidelity_probe import compare_checkpoints  # torch takes seconds to import

    drawing = draw_recipe(recipe, StoreRoots(options.out).cache)
    store = Store(StoreRoots(options.out), {}, ())
    steps = [step for step in drawing.blueprint.steps if step.kind is StepKind.CHECKPOINT]
    targets = [step for step in steps if step.parameters["role"] == "target"]
    plain = _chosen(targets, False, "16-bit precision (fp16 or bf16)", store)
    fp8 = _chosen(targets, True, "precision fp8", store)
    files = find_calibration_files(options.texts or drawing.file.resolve(drawing.file.recipe.verify.prompts))
    texts = read_calibration_texts(files, "text", options.samples)
    samples = encode_texts(Path(drawing.target.path), texts, options.max_tokens)
    first, second = ((path, read_config(path / "config.json")) for path in (plain, fp8))
    return compare_checkpoints(first, second, open_tensor_file, samples, progress)


def _chosen(steps: list[Step], quantised: bool, words: str, store: Store) -> Path:
    """The directory of the first target checkpoint of a kind; float32 is as good as 16 bit to compare with."""
    for step in steps:
        if is_fp8(object_of(step.parameters, "config")) is quantised:
            if store.receipt(step) is None:
                raise Failure(f"{step.label} is not built", "run draftyard build first")
            return store.path(step.kind, step.key)
    raise Failure(f"the recipe has no {words} to compare", "add it to precisions and build")
