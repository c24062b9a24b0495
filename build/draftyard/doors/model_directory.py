"""Reads a model directory in Hugging Face layout: settings, tokenizer, tensor headers, and a digest of its contents."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from draftyard.doors.file_digest import file_digest
from draftyard.doors.tokenizer_files import TOKENIZER_FILES
from draftyard.doors.tokenizer_memory import remembered_tokenizer
from draftyard.doors.weight_files import (
    INDEX_NAME,
    PICKLE_INDEX_NAME,
    HeaderReader,
    Pickles,
    WeightFiles,
    find_weights,
)
from draftyard.nouns.digest import Json, digest
from draftyard.nouns.errors import Failure, Problem
from draftyard.nouns.source import ModelFiles, TokenizerFacts

_CACHE_NAME = "content-hashes.json"
_SETTINGS = ("config.json", "generation_config.json", "hf_quant_config.json")


def read_model_directory(
    directory: Path, read_pickle: HeaderReader | None = None, cache: Path | None = None
) -> ModelFiles:
    """Everything but the weights' bytes. Failure only when `directory` is no directory or in Meta's own layout.

    `read_pickle` is the permission to open pickles, and how to read their headers; `cache` remembers tokenizers.

    All else that is wrong with the files is collected in `problems`.
    """
    if not directory.is_dir():
        raise Failure(f"{directory} is no directory", "give the directory that holds config.json and the weights")
    _refuse_foreign_layout(directory)
    problems = _dangling(directory)
    config = read_settings(directory, "config.json", problems, required=True)
    generation = read_settings(directory, "generation_config.json", problems)
    settings = read_settings(directory, "tokenizer_config.json", problems)
    quantisation = read_settings(directory, "hf_quant_config.json", problems)
    tokenizer = _read_tokenizer(directory, settings, problems, cache)
    weights = _find_weights(directory, read_pickle, problems)
    used = (*_SETTINGS, *TOKENIZER_FILES, *weights.files)
    return ModelFiles(
        path=str(directory),
        config=config,
        generation_config=generation,
        tokenizer=tokenizer,
        tensors=tuple(weights.tensors),
        listed=tuple(weights.listed),
        hashed=tuple(name for name in used if (directory / name).is_file()),
        problems=(*problems, *weights.problems),
        notes=tuple(weights.notes),
        quantisation=quantisation,
    )


def content_digest(directory: Path, names: Sequence[str], cache: Path | None) -> str:
    """A hash over the contents of the files `names`; where they lie and when they were written is no part of it.

    `cache` is a directory for the hashes already known, by path, size, time of change and inode. This process remembers
    them too, so that a model is read once by whoever plans and converts it.
    """
    stored = _load_cache(cache)
    hashes: dict[str, Json] = {}
    used: dict[str, str] = {}
    for name in names:
        path = (directory / name).resolve()
        state = path.stat()
        identity = f"{path}|{state.st_size}|{state.st_mtime_ns}|{state.st_ino}"
        used[identity] = stored.get(identity) or _REMEMBERED.get(identity) or file_digest(path)
        hashes[name] = used[identity]
    for identity, content in used.items():
        _REMEMBERED.setdefault(identity, content)
    if cache is not None and not used.keys() <= stored.keys():
        _save_cache(cache, {**stored, **used})
    return digest(hashes)


_REMEMBERED: dict[str, str] = {}


def _load_cache(cache: Path | None) -> dict[str, str]:
    if cache is None:
        return {}
    try:
        document = json.loads((cache / _CACHE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Only a cache: what cannot be read is made again.
        return {}
    if not isinstance(document, dict):
        return {}
    return {str(key): str(value) for key, value in document.items()}


def _save_cache(cache: Path, hashes: Mapping[str, str]) -> None:
    beside = cache / f"{_CACHE_NAME}.{os.getpid()}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(hashes, indent=1, sort_keys=True), encoding="utf-8")
        beside.replace(cache / _CACHE_NAME)
    except OSError:
        # Only a cache: without it the files are hashed again next time.
        return


def _refuse_foreign_layout(directory: Path) -> None:
    if (directory / "config.json").exists():
        return
    if (directory / "params.json").exists() or any(directory.glob("consolidated.*.pth")):
        raise Failure(
            f"{directory.name} is in Meta's own layout (params.json, consolidated.*.pth)",
            "convert it to Hugging Face layout first, or fetch the repository whose name ends in -hf",
        )


def _dangling(directory: Path) -> list[Problem]:
    links = [path for path in sorted(directory.iterdir()) if path.is_symlink() and not path.exists()]
    return [
        Problem(f"{link.name} is a dangling link", "copy the files themselves (cp -L), not the links") for link in links
    ]


def _refuse_constant(word: str) -> Json:
    raise ValueError(f"{word} is no JSON number")


def read_settings(directory: Path, name: str, problems: list[Problem], *, required: bool = False) -> Mapping[str, Json]:
    path = directory / name
    if not path.is_file():
        if required and not path.is_symlink():
            problems.append(Problem(f"there is no {name}", f"fetch {name} into the model directory"))
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        problems.append(Problem(f"{name} is nested too deeply", f"fetch {name} again"))
        return {}
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        problems.append(Problem(f"{name} is no valid JSON at {place}: {error.msg}", f"correct {name}"))
        return {}
    except (OSError, ValueError) as error:
        problems.append(Problem(f"{name} cannot be read: {error}", f"fetch {name} again"))
        return {}
    if not isinstance(document, dict) or not document:
        problems.append(Problem(f"{name} holds no JSON object with keys", f"fetch {name} again"))
        return {}
    return document


def _read_tokenizer(
    directory: Path, settings: Mapping[str, Json], problems: list[Problem], cache: Path | None
) -> TokenizerFacts | None:
    try:
        return remembered_tokenizer(directory, settings, cache)
    except Failure as failure:
        problems.append(Problem(failure.message, failure.hint))
        return None


def _find_weights(directory: Path, read_pickle: HeaderReader | None, problems: list[Problem]) -> WeightFiles:
    pickles = permitted_pickles(directory, read_pickle, problems)
    if not (directory / INDEX_NAME).is_file():
        return find_weights(directory, None, pickles)
    return find_weights(directory, read_settings(directory, INDEX_NAME, problems), pickles)


def permitted_pickles(directory: Path, read_pickle: HeaderReader | None, problems: list[Problem]) -> Pickles | None:
    """The permission with the pickles' index, where there is one and no safetensors file makes it idle."""
    if read_pickle is None or any(directory.glob("*.safetensors")):
        return None
    indexed = (directory / PICKLE_INDEX_NAME).is_file()
    return Pickles(read_pickle, read_settings(directory, PICKLE_INDEX_NAME, problems) if indexed else None)
