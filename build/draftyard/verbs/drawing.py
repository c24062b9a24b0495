"""From a recipe file to a blueprint: parse, look at the models, pair them, draw; the first half of plan and build."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.calibration_texts import find_calibration_files
from draftyard.doors.model_directory import read_model_directory
from draftyard.doors.recipe_files import read_recipe_text, read_toolchain
from draftyard.doors.shipped_files import guests_digest
from draftyard.nouns.activation_ranges import CalibrationTexts
from draftyard.nouns.blueprint import Blueprint
from draftyard.nouns.errors import Problem, raise_problems
from draftyard.nouns.network import Precision
from draftyard.nouns.recipe import Recipe
from draftyard.nouns.source import Source
from draftyard.rules.capability import capability_problems
from draftyard.rules.draw import draft_speculators, draw, recipe_problems
from draftyard.rules.inspection import examine
from draftyard.rules.recipe_text import judge_recipe
from draftyard.verbs.inspect import inspect, pair


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
    """A blueprint with what it was drawn from; `notes` are findings for people."""

    file: RecipeFile
    target: Source
    drafts: tuple[Source, ...]
    blueprint: Blueprint
    notes: tuple[str, ...]


def read_recipe(path: Path) -> RecipeFile:
    """Parse and judge a recipe; Failure lists every problem of the file together."""
    text = read_recipe_text(path)
    return RecipeFile(path.resolve(), judge_recipe(text.document, text.lines, path.name))


def draw_recipe(path: Path, cache: Path | None) -> Drawing:
    """Everything that is decided before any work; weights are read for their digest only, after all checks.

    `cache` is where hashes of unchanged model files are remembered. Failure lists what is wrong with the recipe, with
    each model, and with their combination.
    """
    file = read_recipe(path)
    recipe = file.recipe
    raise_problems(capability_problems(recipe))
    target_path = file.resolve(recipe.target.path)
    draft_paths = tuple(file.resolve(speculator.path) for speculator in draft_speculators(recipe))
    texts = _calibration_texts(file)
    raise_problems(_network_problems(recipe, target_path, draft_paths))
    target = inspect(target_path, cache)
    drafts = tuple(inspect(draft_path, cache) for draft_path in draft_paths)
    notes = [f"target: {note}" for note in target.notes]
    for draft in drafts:
        notes.extend(f"draft: {note}" for note in (*draft.notes, *pair(target, draft, recipe.limits)))
    blueprint = draw(recipe, target, drafts, read_toolchain(), guests_digest(), texts)
    return Drawing(file, target, drafts, blueprint, tuple(notes))


def _calibration_texts(file: RecipeFile) -> CalibrationTexts | None:
    """The texts of a recipe with fp8; Failure when there are none at their path."""
    wishes = file.recipe.quantisation.calibration
    if wishes is None or Precision.FP8 not in file.recipe.precisions:
        return None
    found = find_calibration_files(file.resolve(wishes.prompts))
    return CalibrationTexts(str(found.path), found.digest)


def _network_problems(recipe: Recipe, target: Path, drafts: tuple[Path, ...]) -> list[Problem]:
    """What headers alone tell: families, cuts, positions. Faults of the files are left to `inspect`."""
    found = [examine(read_model_directory(directory)).network for directory in (target, *drafts)]
    networks = [network for network in found if network is not None]
    return recipe_problems(recipe, networks[0], tuple(networks[1:])) if len(networks) == len(found) else []
