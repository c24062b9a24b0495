"""What all parts of a recipe have in common, and the numbers in them."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Strict: YAML has whole numbers of its own, and `true` or "1" in their place is a slip.
Count = Annotated[int, Field(ge=1, strict=True)]
Whole = Annotated[int, Field(ge=0, strict=True)]


class Section(BaseModel):
    """A part of the recipe: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
