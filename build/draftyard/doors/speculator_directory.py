"""Reads a directory with a speculator's weights: settings and tokenizer where there are some, and tensor headers."""

from pathlib import Path

from draftyard.doors.model_directory import permitted_pickles, read_settings
from draftyard.doors.tensors import read_tensor_headers
from draftyard.doors.tokenizer_files import TOKENIZER_FILES
from draftyard.doors.tokenizer_memory import remembered_tokenizer
from draftyard.doors.weight_files import (
    INDEX_NAME,
    HeaderReader,
    WeightFiles,
    find_pickled_weights,
    find_weights,
    pickled_files,
)
from draftyard.nouns.errors import Failure, Problem
from draftyard.nouns.source import ModelFiles, TokenizerFacts
from draftyard.nouns.tensor import name_list


def read_speculator_directory(
    directory: Path, read_pickle: HeaderReader | None = None, cache: Path | None = None
) -> ModelFiles:
    """Everything but the weights' bytes. Failure only when `directory` is no directory.

    `read_pickle` is the permission to open pickles, and how to read their headers; `cache` remembers tokenizers.

    Weights are the shards of an index, or one safetensors file of any name. Settings and tokenizer may be missing, as
    they are in many published heads; what is wrong with those that are there is collected in `problems`.
    """
    if not directory.is_dir():
        raise Failure(f"{directory} is no directory", "give the directory that holds the speculator's weights")
    problems: list[Problem] = []
    config = read_settings(directory, "config.json", problems)
    tokenizer = _tokenizer(directory, problems, cache)
    weights = _weights(directory, read_pickle, problems)
    used = ("config.json", *(TOKENIZER_FILES if tokenizer else ()), *weights.files)
    return ModelFiles(
        path=str(directory),
        config=config,
        generation_config={},
        tokenizer=tokenizer,
        tensors=tuple(weights.tensors),
        listed=tuple(weights.listed),
        hashed=tuple(name for name in used if (directory / name).is_file()),
        problems=(*problems, *weights.problems),
        notes=tuple(weights.notes),
    )


def _tokenizer(directory: Path, problems: list[Problem], cache: Path | None) -> TokenizerFacts | None:
    if not (directory / "tokenizer.json").is_file():
        return None
    settings = read_settings(directory, "tokenizer_config.json", problems)
    try:
        return remembered_tokenizer(directory, settings, cache)
    except Failure as failure:
        problems.append(Problem(failure.message, failure.hint))
        return None


def _weights(directory: Path, read_pickle: HeaderReader | None, problems: list[Problem]) -> WeightFiles:
    if (directory / INDEX_NAME).is_file():
        return find_weights(directory, read_settings(directory, INDEX_NAME, problems))
    found = WeightFiles()
    present = sorted(path for path in directory.glob("*.safetensors"))
    pickles = pickled_files(directory)
    if len(present) == 1:
        found.files.append(present[0].name)
        try:
            headers = read_tensor_headers(present[0])[0]
        except Failure as failure:
            found.problems.append(Problem(failure.message, failure.hint))
            return found
        found.tensors.extend(headers[name] for name in sorted(headers))
        if pickles:
            found.notes.append(f"ignored: {name_list(pickles)} beside the safetensors file")
    elif present:
        names = name_list([path.name for path in present])
        found.problems.append(
            Problem(f"{names} without {INDEX_NAME}", "keep the one file of the speculator, or fetch the index")
        )
    elif pickles:
        find_pickled_weights(directory, permitted_pickles(directory, read_pickle, problems), found)
    else:
        found.problems.append(Problem("there are no weights (*.safetensors)", "fetch the speculator's weights"))
    return found
