"""What a recipe must not say, whatever its models are."""

import pytest
import yaml
from pydantic import ValidationError
from tests.fakes.tiny_recipe import TEXT

from draftyard.nouns.recipe import Recipe


def parsed(*changes: tuple[str, str]) -> Recipe:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return Recipe.model_validate(yaml.safe_load(text))


def test_the_plain_recipe_is_accepted() -> None:
    assert parsed().name == "tiny"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_batch_size: 2", "max_batch_size: true", "valid integer"),
        ("max_batch_size: 2", 'max_batch_size: "2"', "valid integer"),
        ("max_batch_size: 2", "max_batch_size: 2.0", "valid integer"),
        ("max_batch_size: 2", "max_batch_size: 0", "greater than or equal to 1"),
        ("lanes: [reference]", "lanes: [reference, reference]", "lanes lists a value twice"),
        ("precisions: [fp32]", "precisions: [fp32, fp16, fp32]", "precisions lists a value twice"),
        ("max_draft_len: 3", "max_draft_len: 5000", "max_draft_len 5000 must be below limits.max_seq_len 64"),
        ("max_input_len: 32", "max_input_len: 64", "max_input_len must be below max_seq_len"),
        ("concurrency: [1, 2]", "concurrency: [2, 1]", "rising numbers"),
    ],
)
def test_slips_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parsed((old, new))
