"""The families there is a page for; adding one is one page and one entry here."""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.rules.families.family import Family
from draftyard.rules.families.llama import LLAMA
from draftyard.rules.families.mistral import MISTRAL
from draftyard.rules.families.mixtral import MIXTRAL
from draftyard.rules.families.qwen2 import QWEN2
from draftyard.rules.families.qwen3 import QWEN3

FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3)}


def family_of(config: Mapping[str, Json]) -> Family | Problem:
    """The page for a parsed `config.json`, or the problem that there is none."""
    supported = ", ".join(FAMILIES)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return Problem("config.json has no model_type", f"add it to config.json; supported: {supported}")
    family = FAMILIES.get(model_type)
    if family is None:
        return Problem(
            f"model_type {model_type!r} is not supported; supported: {supported}", "choose a model of a supported type"
        )
    named = config.get("architectures")
    if isinstance(named, list) and named and family.architecture not in named:
        return Problem(
            f"architectures {named} does not go with model_type {model_type!r}, which needs {family.architecture}",
            "use the model with the language head, or correct config.json",
        )
    return family
