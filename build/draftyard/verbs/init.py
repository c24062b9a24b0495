"""Writes a commented recipe for a model, ready to be planned."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from draftyard.doors.model_directory import read_model_directory
from draftyard.doors.recipe_files import write_new_text
from draftyard.doors.speculator_directory import read_speculator_directory
from draftyard.nouns.errors import raise_problems
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.recipe import (
    DraftTargetSpeculator,
    Limits,
    NgramSpeculator,
    Recipe,
    Speculator,
    Target,
)
from draftyard.nouns.verification import Verify
from draftyard.rules.capability import capability_problems
from draftyard.rules.inspection import examine
from draftyard.rules.recipe_writing import recipe_text
from draftyard.rules.speculators.examination import examine_speculator
from draftyard.verbs.inspect import speculator_kind

_OPENING = """A recipe of Draftyard. Paths are relative to this file; every key has its default or a first guess.
Check it with: draftyard plan THIS_FILE"""
_LONGEST = 2048
_SPECULATOR: TypeAdapter[Speculator] = TypeAdapter(Speculator)


@dataclass(frozen=True, slots=True)
class InitOptions:
    """Where the recipe goes, which draft model or other speculator's directory it names, where its prompts lie."""

    output: Path
    draft: Path | None
    prompts: Path


def init(model: Path, options: InitOptions) -> Path:
    """Write the recipe and return its path. Failure when the model is unfit, or when the file exists already."""
    network = _network(model)
    folder = options.output.resolve().parent
    recipe = Recipe(
        version=1,
        name=_short_name(model),
        target=Target(path=_seen_from(folder, model), tp_size=1, pp_size=1),
        speculators=_speculators(folder, options.draft),
        lanes=(Lane.REFERENCE,),
        gpus=(Gpu.CPU,),
        precisions=(Precision.FP32,),
        limits=_limits(network),
        verify=Verify(prompts=_seen_from(folder, options.prompts)),
    )
    raise_problems(capability_problems(recipe, network.family))
    write_new_text(options.output, recipe_text(recipe, _OPENING))
    return options.output


def _network(model: Path) -> Network:
    """Only headers are read; a wrong model is refused here already."""
    inspection = examine(read_model_directory(model))
    raise_problems(inspection.problems)
    if inspection.network is None:
        raise AssertionError("a model without problems has a network")
    return inspection.network


def _short_name(model: Path) -> str:
    name = re.sub(r"[^a-z0-9._-]+", "-", model.resolve().name.lower()).strip("._-")[:63]
    return name or "model"


def _seen_from(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder)).as_posix()


def _speculators(folder: Path, draft: Path | None) -> tuple[Speculator, ...]:
    ngram = NgramSpeculator(kind=SpeculatorKind.NGRAM)
    if draft is None:
        return (ngram,)
    kind = speculator_kind(draft)
    if kind is None:
        _network(draft)
        return (ngram, DraftTargetSpeculator(kind=SpeculatorKind.DRAFT_TARGET, path=_seen_from(folder, draft)))
    raise_problems(examine_speculator(read_speculator_directory(draft), kind).problems)
    return (ngram, _SPECULATOR.validate_python({"kind": kind.value, "path": _seen_from(folder, draft)}))


def _limits(network: Network) -> Limits:
    """As long as the model allows, up to 2048 tokens; half of it for the prompt."""
    longest = min(_LONGEST, network.max_position_embeddings)
    return Limits(max_seq_len=longest, max_input_len=max(1, longest // 2), max_num_tokens=max(8, longest))
