"""Prints the schemas of recipes and policies, for editors and for people who write one."""

from draftyard.nouns.digest import Json
from draftyard.nouns.policy import Policy
from draftyard.nouns.recipe import Recipe


def recipe_schema() -> dict[str, Json]:
    """The JSON schema (draft 2020-12) of a recipe file, with the descriptions and limits of every key."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Recipe.model_json_schema(),
        "title": "Draftyard recipe",
    }


def policy_schema() -> dict[str, Json]:
    """The JSON schema (draft 2020-12) of a policy file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Policy.model_json_schema(),
        "title": "Draftyard policy",
    }
