"""Every problem of a recipe at once, with its line, its path, and the nearest known key."""

import pytest
import yaml
from tests.fakes.tiny_recipe import TEXT

from draftyard.doors.yaml_text import parse_yaml
from draftyard.nouns.errors import Failure
from draftyard.nouns.recipe import Recipe
from draftyard.rules.recipe_text import judge_recipe
from draftyard.rules.recipe_writing import recipe_text


def judged(text: str) -> Failure:
    parsed, problems = parse_yaml(text, "r.yaml")
    assert problems == []
    with pytest.raises(Failure) as caught:
        judge_recipe(parsed.document, parsed.lines, "r.yaml")
    return caught.value


def test_a_recipe_is_accepted() -> None:
    recipe = judge_recipe(yaml.safe_load(TEXT), {}, "r.yaml")
    assert recipe.limits.max_batch_size == 2
    assert [speculator.kind.value for speculator in recipe.speculators] == ["ngram", "draft_target"]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        (
            "max_batch_size: 2",
            "max_bach_size: 2",
            "r.yaml:10: limits.max_bach_size: unknown key, the nearest known one is max_batch_size",
            "write limits.max_batch_size",
        ),
        ("name: tiny", "name: tiny\nzzzz: 1", "r.yaml:3: zzzz: unknown key; known here: version, name", "remove zzzz"),
        (
            "max_draft_len: 3",
            "max_draft_length: 3",
            "r.yaml:5: speculators.0.max_draft_length: unknown key, the nearest known one is max_draft_len",
            "write speculators.0.max_draft_len",
        ),
        (
            "max_draft_len: 3",
            "max_draft_len: 0",
            "r.yaml:5: speculators.0.max_draft_len: input should be greater than or equal to 1, not 0",
            "correct speculators.0.max_draft_len",
        ),
        ("prompts: prompts, ", "", "r.yaml:11: verify.prompts is missing", "add verify.prompts: Prompt pack"),
        (
            "kind: ngram",
            "kind: n-gram",
            "speculators.0: no kind that is known; known kinds: ngram, draft_target",
            "set",
        ),
        (
            "kind: ngram, max_draft_len: 3",
            "kind: medusa, path: heads, choices: [[0], [-1]]",
            "r.yaml:5: speculators.0.choices.1.0: input should be greater than or equal to 0, not -1",
            "correct speculators.0.choices.1.0",
        ),
        (
            "kind: ngram, max_draft_len: 3",
            "kind: eagle, path: net, eagle_layers: 3",
            "r.yaml:5: speculators.0.eagle_layers: unknown key, the nearest known one is num_eagle_layers",
            "write speculators.0.num_eagle_layers",
        ),
        (
            "kind: ngram, max_draft_len: 3",
            "kind: eagle3",
            "r.yaml:5: speculators.0.path is missing",
            "add speculators.0.path: Directory of the EAGLE-3 network",
        ),
        ("max_input_len: 32", "max_input_len: 64", "limits: max_input_len must be below max_seq_len", "correct limits"),
        ("[fp32]", "[fp31]", "r.yaml:9: precisions.0: input should be 'fp32', 'fp16', 'bf16' or 'fp8'", "correct"),
        ("[fp32]", "[]", "r.yaml:9: precisions: tuple should have at least 1 item", "correct precisions"),
    ],
)
def test_problems(old: str, new: str, message: str, hint: str) -> None:
    failure = judged(TEXT.replace(old, new))
    assert message in failure.message
    assert hint in failure.hint


def test_all_problems_together() -> None:
    failure = judged(TEXT.replace("max_batch_size", "max_batch").replace("version: 1", "version: 2"))
    assert failure.message.startswith("2 problems: ")
    assert "version" in failure.message
    assert "max_batch_size" in failure.message


def test_a_default_that_waits_for_another_key_is_no_problem_of_its_own() -> None:
    failure = judged(TEXT.replace("kind: ngram, max_draft_len: 3", "kind: eagle3, path: net, depth: 0"))
    assert failure.message == "r.yaml:5: speculators.0.depth: input should be greater than or equal to 1, not 0"


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_no_mapping_is_no_recipe(document: object) -> None:
    with pytest.raises(Failure, match="holds no recipe"):
        judge_recipe(document, {}, "r.yaml")


def test_a_written_recipe_reads_back_as_itself() -> None:
    heads = (
        "\n  - {kind: medusa, path: heads, choices: [[0], [0, 0], [1]]}\n  - {kind: lookahead, ngram_size: 3}\nlanes"
    )
    recipe = judge_recipe(
        yaml.safe_load(TEXT.replace("path: draft", "path: 'a: #b'").replace("\nlanes", heads)), {}, "r.yaml"
    )
    text = recipe_text(recipe, "first\nsecond")
    assert text.startswith("# first\n# second\n")
    assert judge_recipe(yaml.safe_load(text), {}, "r.yaml") == recipe
    for name, field in Recipe.model_fields.items():
        assert name in text
        assert field.description is None or field.description in text
