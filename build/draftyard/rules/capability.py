"""Which lane executes what, as one table; a refusal names the nearest combination that is built."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from draftyard.nouns.errors import Problem
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.recipe import Recipe

_DENSE = ("llama", "mistral", "qwen2", "qwen3")
_ALL = (*_DENSE, "mixtral")
_HOPPER = (Gpu.H100_SXM, Gpu.H100_PCIE, Gpu.H100_NVL, Gpu.H200_SXM)
_SIXTEEN = (Precision.FP16, Precision.BF16)
_SERVED = (*_SIXTEEN, Precision.FP8)
_PLAIN = (Precision.FP32, *_SIXTEEN)
_EXECUTED = (*_PLAIN, Precision.FP8)
_CPU = (Gpu.CPU,)


@dataclass(frozen=True, slots=True)
class Capability:
    """What a lane executes with one way to speculate, and this version makes.

    `largest_ranks` bounds tp_size x pp_size.
    """

    lane: Lane
    speculator: SpeculatorKind
    families: tuple[str, ...]
    precisions: tuple[Precision, ...]
    gpus: tuple[Gpu, ...]
    largest_ranks: int


# Lanes and speculators after TensorRT-LLM 1.2.1: its engine flow knows EAGLE-1/2 for Llama in 16 bit only, its PyTorch
# backend has no Medusa and no lookahead. The reference lane puts the ranks' files together in one process.
CAPABILITIES: tuple[Capability, ...] = (
    Capability(Lane.REFERENCE, SpeculatorKind.NONE, _ALL, _EXECUTED, _CPU, 64),
    Capability(Lane.REFERENCE, SpeculatorKind.NGRAM, _ALL, _EXECUTED, _CPU, 64),
    Capability(Lane.REFERENCE, SpeculatorKind.DRAFT_TARGET, _ALL, _EXECUTED, _CPU, 64),
    Capability(Lane.REFERENCE, SpeculatorKind.MEDUSA, _DENSE, _EXECUTED, _CPU, 64),
    Capability(Lane.REFERENCE, SpeculatorKind.EAGLE, _DENSE, _EXECUTED, _CPU, 64),
    Capability(Lane.REFERENCE, SpeculatorKind.EAGLE3, _DENSE, _EXECUTED, _CPU, 64),
    Capability(Lane.REFERENCE, SpeculatorKind.MTP, _DENSE, _EXECUTED, _CPU, 64),
    Capability(Lane.TENSORRT, SpeculatorKind.NONE, _ALL, _SERVED, _HOPPER, 8),
    Capability(Lane.TENSORRT, SpeculatorKind.DRAFT_TARGET, _ALL, _SERVED, _HOPPER, 8),
    Capability(Lane.TENSORRT, SpeculatorKind.MEDUSA, _ALL, _SERVED, _HOPPER, 8),
    Capability(Lane.TENSORRT, SpeculatorKind.EAGLE, ("llama",), _SIXTEEN, _HOPPER, 8),
    Capability(Lane.TENSORRT, SpeculatorKind.LOOKAHEAD, _ALL, _SERVED, _HOPPER, 8),
    Capability(Lane.LLMAPI, SpeculatorKind.NONE, _ALL, _SERVED, _HOPPER, 8),
    Capability(Lane.LLMAPI, SpeculatorKind.DRAFT_TARGET, _ALL, _SERVED, _HOPPER, 8),
    Capability(Lane.LLMAPI, SpeculatorKind.EAGLE3, _ALL, _SERVED, _HOPPER, 8),
    Capability(Lane.LLMAPI, SpeculatorKind.MTP, _ALL, _SERVED, _HOPPER, 8),
    Capability(Lane.LLMAPI, SpeculatorKind.NGRAM, _ALL, _SERVED, _HOPPER, 8),
)


@dataclass(frozen=True, slots=True)
class Combination:
    """One thing that is asked for; family None when the model was not looked at yet."""

    lane: Lane
    speculator: SpeculatorKind
    precision: Precision
    gpu: Gpu
    ranks: int
    family: str | None = None

    def __str__(self) -> str:
        words = [f"lane {self.lane}", f"speculator {self.speculator}", f"precision {self.precision}", f"gpu {self.gpu}"]
        if self.family is not None:
            words.append(f"family {self.family}")
        return ", ".join([*words, f"{self.ranks} ranks" if self.ranks > 1 else "1 rank"])


def gpus_of(lane: Lane, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Those of `gpus` that a lane runs on: cpu goes with the reference lane, products with the others."""
    possible = {gpu for row in CAPABILITIES if row.lane is lane for gpu in row.gpus}
    return tuple(gpu for gpu in gpus if gpu in possible)


def capability_problems(
    recipe: Recipe, family: str | None = None, draft_families: tuple[str, ...] = ()
) -> list[Problem]:
    """Every combination of a recipe that is not built, each with the nearest one that is. Needs no weights.

    `family` and `draft_families` None or empty before the models were looked at.
    """
    problems = _unused_gpus(recipe)
    for combination in _combinations(recipe, family, draft_families):
        problem = _refusal(combination)
        if problem is not None and problem not in problems:
            problems.append(problem)
    return problems


def _combinations(recipe: Recipe, family: str | None, draft_families: tuple[str, ...]) -> Iterator[Combination]:
    ranks = recipe.target.tp_size * recipe.target.pp_size
    for lane in recipe.lanes:
        # Without a device that fits, the ones asked for are refused by name.
        devices = gpus_of(lane, recipe.gpus) or recipe.gpus
        for speculator, precision, gpu in product((None, *recipe.speculators), recipe.precisions, devices):
            if speculator is not None and not speculator.built_in(precision):
                continue
            kind = SpeculatorKind.NONE if speculator is None else SpeculatorKind(speculator.kind)
            yield Combination(lane, kind, precision, gpu, ranks, family)
            if kind is SpeculatorKind.DRAFT_TARGET:
                for draft_family in draft_families:
                    yield Combination(lane, kind, precision, gpu, ranks, draft_family)


def _unused_gpus(recipe: Recipe) -> list[Problem]:
    used = {gpu for lane in recipe.lanes for gpu in gpus_of(lane, recipe.gpus)}
    if not used:
        return []  # each lane refuses them by itself
    lanes = " and ".join(lane.value for lane in recipe.lanes)
    return [
        Problem(
            f"no lane of the recipe runs on {gpu} (lanes: {lanes})", f"remove {gpu} from gpus, or add a lane for it"
        )
        for gpu in recipe.gpus
        if gpu not in used
    ]


def _refusal(asked: Combination) -> Problem | None:
    rows = [row for row in CAPABILITIES if row.lane is asked.lane and row.speculator is asked.speculator]
    if any(not _mismatches(row, asked) for row in rows):
        return None
    nearest = f"use the nearest that is built: {_nearest(asked)}"
    if not rows:
        return Problem(f"the {asked.lane} lane does not execute {asked.speculator}", nearest)
    wrong = ", ".join(_mismatches(rows[0], asked))
    return Problem(f"the {asked.lane} lane with speculator {asked.speculator} does not execute {wrong}", nearest)


def _mismatches(row: Capability, asked: Combination) -> list[str]:
    checks = (
        (f"precision {asked.precision}", asked.precision in row.precisions),
        (f"gpu {asked.gpu}", asked.gpu in row.gpus),
        (f"family {asked.family}", asked.family is None or asked.family in row.families),
        (f"{asked.ranks} ranks", asked.ranks <= row.largest_ranks),
    )
    return [words for words, fits in checks if not fits]


def _nearest(asked: Combination) -> Combination:
    """The built combination that keeps most of what was asked; the speculator weighs most, then the lane."""

    def distance(row: Capability) -> tuple[int, bool, bool]:
        other = (row.speculator is not asked.speculator, row.lane is not asked.lane)
        # A model's family is given; all else can be changed in a recipe.
        family = 2 if asked.family is not None and asked.family not in row.families else 0
        return (len(_mismatches(row, asked)) + sum(other) + family, *other)

    row = min(CAPABILITIES, key=distance)
    return Combination(
        lane=row.lane,
        speculator=row.speculator,
        precision=asked.precision if asked.precision in row.precisions else row.precisions[0],
        gpu=asked.gpu if asked.gpu in row.gpus else row.gpus[0],
        ranks=min(asked.ranks, row.largest_ranks),
        family=asked.family if asked.family is None or asked.family in row.families else row.families[0],
    )
