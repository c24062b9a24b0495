"""Finds the weights of a model directory: one file, or shards by their index, checked both ways; pickles if allowed."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from draftyard.doors.tensors import read_tensor_headers
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure, Problem
from draftyard.nouns.tensor import TensorHeader, name_list

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
PICKLE_NAME = "pytorch_model.bin"
PICKLE_INDEX_NAME = "pytorch_model.bin.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth")
# What trainers leave beside the weights.
_LEFTOVERS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")

# Headers by name of the tensors in one file; Failure says what is wrong with it.
HeaderReader: TypeAlias = Callable[[Path], Mapping[str, TensorHeader]]


@dataclass(slots=True)
class WeightFiles:
    """What was found; `listed` are the tensors an index promises, `files` the names of the files in use."""

    tensors: list[TensorHeader] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_weights(directory: Path, index: Mapping[str, Json] | None, pickles: "Pickles | None" = None) -> WeightFiles:
    """Headers of all tensors of the model; `index` is the parsed index file, None when there is none.

    The index wins over files it does not name. Without one there must be a single `model.safetensors`. Pickles are
    never opened, unless `pickles` says how, and there is no safetensors file. What is wrong lands in `problems`.
    """
    found = WeightFiles()
    present = sorted(path.name for path in directory.glob("*.safetensors"))
    stored = pickled_files(directory)
    if index is not None:
        _by_index(directory, index, INDEX_NAME, present, read_safetensors, found)
    elif SINGLE_NAME in present:
        _single(directory, present, found)
    elif present:
        found.problems.append(
            Problem(f"{name_list(present)} without {INDEX_NAME}", f"fetch {INDEX_NAME} that says which tensor is where")
        )
    elif stored:
        find_pickled_weights(directory, pickles, found)
    else:
        found.problems.append(Problem("there are no weights (*.safetensors)", "fetch the model's weights"))
    if present and stored:
        found.notes.append(f"ignored: {name_list(stored)} beside the safetensors files")
    if index is not None and not found.problems:
        _compare_total(index, found)
    return found


@dataclass(frozen=True, slots=True)
class Pickles:
    """The permission to open pickles: how to read their headers, and their parsed index, None when there is none."""

    read: HeaderReader
    index: Mapping[str, Json] | None


def pickled_files(directory: Path) -> list[str]:
    """Names of the files that may hold weights as pickles; what trainers leave behind does not count."""
    names = sorted({path.name for pattern in _PICKLES for path in directory.glob(pattern)})
    return [name for name in names if not name.startswith(_LEFTOVERS)]


def read_safetensors(path: Path) -> Mapping[str, TensorHeader]:
    """Headers of a safetensors file."""
    return read_tensor_headers(path)[0]


def find_pickled_weights(directory: Path, pickles: Pickles | None, found: WeightFiles) -> None:
    """The weights of a directory that has pickles alone: refused without permission; by their index, or one file."""
    stored = pickled_files(directory)
    if pickles is None:
        found.problems.append(
            Problem(
                f"the weights are pickles ({name_list(stored)}), which are not opened",
                "save them as safetensors, or allow them in the recipe: allow_pickle: true",
            )
        )
        return
    found.notes.append("the weights are pickles; only their tensors are read, nothing in them is run")
    if pickles.index is not None:
        _by_index(directory, pickles.index, PICKLE_INDEX_NAME, stored, pickles.read, found)
        return
    single = PICKLE_NAME if PICKLE_NAME in stored else stored[0]
    if single != PICKLE_NAME and len(stored) > 1:
        found.problems.append(
            Problem(f"{name_list(stored)} without {PICKLE_INDEX_NAME}", "keep the one file of the model, or its index")
        )
        return
    found.files.append(single)
    headers = _headers(directory / single, pickles.read, found) or {}
    found.tensors.extend(headers[name] for name in sorted(headers))
    others = [name for name in stored if name != single]
    if others:
        found.notes.append(f"ignored: {name_list(others)} beside {single}")


def _by_index(
    directory: Path, index: Mapping[str, Json], name: str, present: list[str], read: HeaderReader, found: WeightFiles
) -> None:
    holds: dict[str, set[str]] = defaultdict(set)
    if not index:
        # The index could not be read, and that was reported where it was read.
        return
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        found.problems.append(Problem(f"{name} has no weight_map", "fetch the index again"))
        return
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            found.problems.append(
                Problem(f"{name} maps {tensor} to {file!r}, which is no file of this directory", "fetch it again")
            )
            continue
        holds[file].add(tensor)
    found.listed.extend(weight_map)
    found.files.extend([name, *sorted(holds)])
    for file, tensors in sorted(holds.items()):
        if (directory / file).exists():
            _shard(directory / file, tensors, name, read, found)
        else:
            found.problems.append(
                Problem(f"the shard {file} is missing; it holds {name_list(sorted(tensors))}", f"fetch {file}")
            )
    stray = [file for file in present if file not in holds]
    if stray:
        found.notes.append(f"ignored: {name_list(stray)}, which {name} does not name")


def _compare_total(index: Mapping[str, Json], found: WeightFiles) -> None:
    """The sum that an index names is of no use here, but one that is wrong tells of files from two revisions."""
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    held = sum(tensor.size_bytes for tensor in found.tensors)
    if total is not None and total != held:
        found.notes.append(f"{INDEX_NAME} says total_size {total}, its tensors have {held} bytes")


def _shard(path: Path, names: set[str], index_name: str, read: HeaderReader, found: WeightFiles) -> None:
    headers = _headers(path, read, found)
    if headers is None:
        return
    lacking = sorted(names - set(headers))
    if lacking:
        found.problems.append(
            Problem(
                f"{index_name} maps {name_list(lacking)} to {path.name}, whose header lacks it",
                f"fetch {path.name} and the index again, from one revision",
            )
        )
    unlisted = sorted(set(headers) - names)
    if unlisted:
        found.problems.append(
            Problem(
                f"{path.name} holds {name_list(unlisted)}, which {index_name} does not map to it",
                f"fetch {path.name} and the index again, from one revision",
            )
        )
    found.tensors.extend(headers[name] for name in sorted(names & set(headers)))


def _single(directory: Path, present: list[str], found: WeightFiles) -> None:
    found.files.append(SINGLE_NAME)
    headers = _headers(directory / SINGLE_NAME, read_safetensors, found)
    if headers is None:
        return
    found.tensors.extend(headers[name] for name in sorted(headers))
    for other in present:
        if other == SINGLE_NAME:
            continue
        others = _headers(directory / other, read_safetensors, found) or {}
        twice = sorted(set(others) & set(headers))
        if twice:
            found.problems.append(
                Problem(
                    f"{other} and {SINGLE_NAME} both hold {name_list(twice)}, and no {INDEX_NAME} settles which counts",
                    "remove the file that does not belong to the model",
                )
            )
        else:
            found.notes.append(f"ignored: {other} beside {SINGLE_NAME}")


def _headers(path: Path, read: HeaderReader, found: WeightFiles) -> Mapping[str, TensorHeader] | None:
    try:
        return read(path)
    except Failure as failure:
        found.problems.append(Problem(failure.message, failure.hint))
        return None
