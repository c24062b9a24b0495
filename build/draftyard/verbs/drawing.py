"""From a recipe file to a blueprint: parse, look at the models, pair them, draw; the first half of plan and build."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.calibration_texts import find_calibration_files
from draftyard.doors.model_directory import read_model_directory
from draftyard.doors.recipe_files import read_recipe_text, read_toolchain
from draftyard.doors.shipped_files import guests_digest
from draftyard.doors.speculator_directory import read_speculator_directory
from draftyard.doors.tokenizer_memory import keep_tokenizers
from draftyard.nouns.activation_ranges import CalibrationTexts
from draftyard.nouns.blueprint import Blueprint
from draftyard.nouns.errors import Problem, raise_problems
from draftyard.nouns.network import Precision
from draftyard.nouns.policy import Policy
from draftyard.nouns.recipe import Recipe
from draftyard.nouns.source import Source
from draftyard.nouns.speculator_source import SpeculatorSource
from draftyard.rules.capability import capability_problems
from draftyard.rules.draw import draft_speculators, draw, recipe_problems
from draftyard.rules.draw_heads import head_speculators, tree_problems
from draftyard.rules.inspection import examine
from draftyard.rules.recipe_text import judge_recipe
from draftyard.rules.speculators.examination import examine_speculator
from draftyard.verbs.inspect import inspect, inspect_speculator, pair, pair_heads, pickle_reader, speculator_kind


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe and the file it came from; relative paths start at the file."""

    path: Path
    recipe: Recipe

    def resolve(self, path: str) -> Path:
        """A path of the recipe as seen from where the file lies."""
        return (self.path.parent / path).resolve()


@dataclass(frozen=True, slots=True)
class Drawing:
    """A blueprint with what it was drawn from, speculators in the order of the recipe; `notes` are for people."""

    file: RecipeFile
    target: Source
    drafts: tuple[Source, ...]
    blueprint: Blueprint
    notes: tuple[str, ...]
    heads: tuple[SpeculatorSource, ...] = ()


def read_recipe(path: Path) -> RecipeFile:
    """Parse and judge a recipe; Failure lists every problem of the file together."""
    text = read_recipe_text(path)
    return RecipeFile(path.resolve(), judge_recipe(text.document, text.lines, path.name))


def draw_recipe(path: Path, cache: Path | None, rehearsal: bool = False, policy: Policy | None = None) -> Drawing:
    """Everything that is decided before any work; weights are read for their digest only, after all checks.

    `cache` is where hashes of unchanged model files are remembered. Failure lists what is wrong with the recipe, with
    each model, and with their combination.
    """
    file = read_recipe(path)
    recipe = file.recipe
    raise_problems([*capability_problems(recipe), *tree_problems(recipe), *_path_problems(file, cache)])
    target_path = file.resolve(recipe.target.path)
    draft_paths = tuple(file.resolve(speculator.path) for speculator in draft_speculators(recipe))
    texts = _calibration_texts(file)
    raise_problems(_network_problems(file, target_path, draft_paths, cache))
    target = inspect(target_path, cache, allow_pickle=recipe.target.allow_pickle)
    drafts = tuple(
        inspect(draft_path, cache, allow_pickle=one.allow_pickle)
        for draft_path, one in zip(draft_paths, draft_speculators(recipe), strict=True)
    )
    notes = [f"target: {note}" for note in target.notes]
    for draft in drafts:
        notes.extend(f"draft: {note}" for note in (*draft.notes, *pair(target, draft, recipe.limits, recipe.lanes)))
    heads = tuple(
        inspect_speculator(file.resolve(one.path), one.kind, cache, allow_pickle=one.allow_pickle)
        for one in head_speculators(recipe)
    )
    for source in heads:
        notes.extend(f"{source.kind}: {note}" for note in (*source.notes, *pair_heads(target, source)))
    toolchain = read_toolchain().model_copy(update={"rehearsal": rehearsal})
    blueprint = draw(recipe, target, drafts, toolchain, guests_digest(), texts, heads, policy)
    keep_tokenizers(cache)
    return Drawing(file, target, drafts, blueprint, tuple(notes), heads)


def _path_problems(file: RecipeFile, cache: Path | None) -> list[Problem]:
    """Weights that hang on the target's features are neither the target (sgl-project/sglang#36528) nor a draft."""
    target = file.resolve(file.recipe.target.path)
    kinds = [(one, speculator_kind(file.resolve(one.path), cache)) for one in draft_speculators(file.recipe)]
    problems = [
        Problem(f"the recipe says {one.kind}, the tensors in {one.path} say {kind}", f"write kind: {kind}")
        for one, kind in kinds
        if kind is not None
    ]
    problems.extend(
        Problem(f"the path of {one.kind} is the target's own", f"give the directory with the {one.kind} weights")
        for one in head_speculators(file.recipe)
        if file.resolve(one.path) == target
    )
    return problems


def _calibration_texts(file: RecipeFile) -> CalibrationTexts | None:
    """The texts of a recipe with fp8; Failure when there are none at their path."""
    wishes = file.recipe.quantisation.calibration
    if wishes is None or Precision.FP8 not in file.recipe.precisions:
        return None
    found = find_calibration_files(file.resolve(wishes.prompts))
    return CalibrationTexts(str(found.path), found.digest)


def _network_problems(file: RecipeFile, target: Path, drafts: tuple[Path, ...], cache: Path | None) -> list[Problem]:
    """What headers alone tell: families, cuts, positions. Faults of the files are left to `inspect`."""
    recipe = file.recipe
    heads = [
        examine_speculator(
            read_speculator_directory(file.resolve(one.path), pickle_reader(one.allow_pickle), cache), one.kind
        ).network
        for one in head_speculators(recipe)
    ]
    permitted = (recipe.target.allow_pickle, *(one.allow_pickle for one in draft_speculators(recipe)))
    found = [
        examine(read_model_directory(directory, pickle_reader(allowed), cache)).network
        for directory, allowed in zip((target, *drafts), permitted, strict=True)
    ]
    networks = [network for network in found if network is not None]
    known = tuple(network for network in heads if network is not None)
    if len(networks) < len(found) or len(known) < len(heads):
        return []
    return recipe_problems(recipe, networks[0], tuple(networks[1:]), known)
