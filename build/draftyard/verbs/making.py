"""What a maker of an artefact is given: where to write, where its inputs lie, whom to tell about progress."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from draftyard.nouns.blueprint import Step

Progress: TypeAlias = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Workplace:
    """`staging` is an empty directory that becomes the artefact when the maker returns.

    `input_path` gives the directory of an input artefact by its key; `source_paths` are the model directories of
    `Step.sources`, in that order; `progress` takes the share done in 0..1 and a few words.
    """

    staging: Path
    input_path: Callable[[str], Path]
    source_paths: tuple[Path, ...]
    progress: Progress


# Fills the staging directory and returns notes for the receipt; raises Failure and leaves the rest to the store.
Maker: TypeAlias = Callable[[Step, Workplace], tuple[str, ...]]
