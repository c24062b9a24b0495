"""FP8 checkpoints of model directories, with a calibration that the test chooses or lets be made."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftyard.doors.calibration_texts import find_calibration_files
from draftyard.nouns.activation_ranges import ActivationRanges
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.network import Precision
from draftyard.nouns.recipe import KvCachePrecision, Quantisation
from draftyard.rules.families.known_families import FAMILIES
from draftyard.rules.fp8_scales import ranges_json
from draftyard.rules.quantisation import fp8_form, is_quantised
from draftyard.rules.trtllm import checkpoint_config
from draftyard.verbs.calibrate_scales import make_calibration
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.fp8_conversion import module_of
from draftyard.verbs.inspect import inspect
from draftyard.verbs.making import Workplace

WISHES = Quantisation(kv_cache=KvCachePrecision.FP8)
CALIBRATION_KEY = "c" * 64


@dataclass(frozen=True)
class Cut:
    tp_size: int = 1
    pp_size: int = 1


def made_up_ranges(directory: Path) -> ActivationRanges:
    """A range of its own for every module, so that a swap of two shows."""
    network = inspect(directory).network
    config = {"quantization": {"quant_algo": "FP8", "exclude_modules": []}}
    modules = [module_of(rule) for rule in FAMILIES[network.family].rules(network)]
    experts = network.experts.experts if network.experts else 1
    inputs: dict[str, tuple[float | None, ...]] = {}
    for place, module in enumerate(module for module in modules if is_quantised(config, module)):
        count = experts if ".mlp." in module else 1
        inputs[module] = tuple(0.5 + place + 0.125 * index for index in range(count))
    layers = range(network.layers)
    return ActivationRanges(
        3, 60, inputs, tuple(500.0 + layer for layer in layers), tuple(9.0 + layer for layer in layers)
    )


def calibrated(directory: Path, staging: Path, texts: Path, samples: int = 64, max_tokens: int = 64) -> Path:
    """The calibration as a build makes it."""
    source = inspect(directory)
    precision = {"F16": Precision.FP16, "BF16": Precision.BF16, "F32": Precision.FP32}[source.weight_type.value]
    parameters = {
        "role": "target",
        "config": checkpoint_config(source.network, precision, 1, 1),
        "prompts": find_calibration_files(texts).digest,
        "text_field": "text",
        "samples": samples,
        "max_tokens": max_tokens,
    }
    step = Step(StepKind.CALIBRATION, "c", parameters, (source.digest,), {}, (str(directory), str(texts)))
    staging.mkdir()
    make_calibration(step, Workplace(staging, no_input, (directory, texts), lambda share, words: None))
    return staging


def fp8_step(directory: Path, cut: Cut = Cut(), wishes: Quantisation = WISHES) -> Step:
    source = inspect(directory)
    form = fp8_form(source.weight_type, wishes, source.fp8)
    config = checkpoint_config(source.network, Precision.FP8, cut.tp_size, cut.pp_size, form)
    scales = {
        "kv_scale": wishes.kv_scale.value,
        "uncalibrated_experts": wishes.uncalibrated_experts.value,
        "scales": "stored" if source.fp8 else "calibrated",
    }
    parameters = {"role": "target", "config": config, "quantisation": scales}
    return Step(StepKind.CHECKPOINT, "c", parameters, (source.digest, CALIBRATION_KEY), {}, (str(directory),))


def fp8_checkpoint(
    directory: Path,
    staging: Path,
    ranges: ActivationRanges | Path | None = None,
    cut: Cut = Cut(),
    wishes: Quantisation = WISHES,
) -> Sequence[str]:
    """Fill `staging` with the checkpoint; returns its notes. `ranges` may be a calibration's directory."""
    if not isinstance(ranges, Path):
        beside = staging.with_name(f"{staging.name}-ranges")
        beside.mkdir(exist_ok=True)
        document = ranges_json(made_up_ranges(directory) if ranges is None else ranges)
        (beside / "amax.json").write_text(json.dumps(document))
        ranges = beside
    staging.mkdir()
    calibration = ranges
    inputs = {CALIBRATION_KEY: calibration}
    place = Workplace(staging, inputs.__getitem__, (directory,), lambda share, words: None)
    return make_checkpoint(fp8_step(directory, cut, wishes), place)


def without_keys(ranges: ActivationRanges) -> ActivationRanges:
    return replace(ranges, keys=(), values=())


def no_input(key: str) -> Path:
    raise KeyError(key)
