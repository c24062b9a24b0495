"""Writes the parts of a Triton repository that are files, and looks at what lies there."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from draftyard.doors.model_config import FILE_NAME, config_text, read_model_config
from draftyard.doors.tensors import link_tensor_file
from draftyard.doors.tokenizer_files import tokenizer_paths
from draftyard.nouns.artifact import RECEIPT_NAME
from draftyard.nouns.errors import Failure
from draftyard.nouns.repository import ModelConfig, Repository

# git, rsync and archives lose an empty folder, and a model without a version folder does not load.
KEEP_NAME = ".keep"


def write_model_config(models: Path, config: ModelConfig) -> None:
    """Write `models`/NAME/config.pbtxt, and the version folder with a file that keeps it when no guest is in it."""
    directory = models / config.name
    version = directory / "1"
    version.mkdir(parents=True, exist_ok=True)
    if not any(version.iterdir()):
        (version / KEEP_NAME).touch()
    (directory / FILE_NAME).write_text(config_text(config), encoding="utf-8")


def read_repository(repository: Path) -> Repository:
    """The configurations of every folder in `models`, sorted by name.

    Failure for an entry that is no model, for a stray file or version, and for a name that is not its folder's.
    """
    models = []
    for directory in sorted((repository / "models").iterdir()):
        entries = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
        if entries != ["1", FILE_NAME]:
            found = ", ".join(entries) or "no folder"
            raise Failure(f"models/{directory.name} is not a model: {found}", f"it needs {FILE_NAME} and 1/ alone")
        config = read_model_config(directory / FILE_NAME)
        if config.name != directory.name:
            raise Failure(f"models/{directory.name} calls itself {config.name}", "give it the name of its folder")
        models.append(config)
    return Repository(tuple(models))


def config_texts(repository: Path) -> Mapping[str, str]:
    """The text of every configuration, by its path inside the repository."""
    paths = sorted((repository / "models").glob(f"*/{FILE_NAME}"))
    return {path.relative_to(repository).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def link_engine(engine: Path, destination: Path) -> tuple[str, ...]:
    """Give every file of an engine a second name below `destination`; returns their paths, sorted.

    The receipt stays behind: it tells of another artefact.
    """
    linked = []
    for path in _files(engine):
        relative = path.relative_to(engine)
        if relative.as_posix() == RECEIPT_NAME:
            continue
        target = destination / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        link_tensor_file(path, target)
        linked.append(relative.as_posix())
    return tuple(linked)


def copy_tokenizer(source: Path, destination: Path) -> tuple[str, ...]:
    """Copy what is served of a tokenizer, and `generation_config.json`; returns the names.

    Copies, not links: a model directory is edited in place. Failure without tokenizer.json.
    """
    if not (source / "tokenizer.json").is_file():
        raise Failure("the model has no tokenizer.json", "fetch or save the model with its tokenizer.json")
    destination.mkdir(parents=True)
    others = [path for path in (source / "generation_config.json",) if path.is_file()]
    paths = (*tokenizer_paths(source), *others)
    for path in paths:
        shutil.copyfile(path, destination / path.name)
    return tuple(path.name for path in paths)


def _files(directory: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(directory):
        folders.sort()
        yield from (Path(folder) / name for name in sorted(names))
