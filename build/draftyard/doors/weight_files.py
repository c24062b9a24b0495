"""Finds the weights of a model directory: one safetensors file, or shards by their index, checked both ways."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from draftyard.doors.tensors import read_tensor_headers
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure, Problem
from draftyard.nouns.tensor import TensorHeader, name_list

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth")


@dataclass(slots=True)
class WeightFiles:
    """What was found; `listed` are the tensors an index promises, `files` the names of the files in use."""

    tensors: list[TensorHeader] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_weights(directory: Path, index: Mapping[str, Json] | None) -> WeightFiles:
    """Headers of all tensors of the model; `index` is the parsed index file, None when there is none.

    The index wins over files it does not name. Without one there must be a single `model.safetensors`. Pickles are
    never opened. What is wrong lands in `problems`.
    """
    found = WeightFiles()
    present = sorted(path.name for path in directory.glob("*.safetensors"))
    pickles = sorted({path.name for pattern in _PICKLES for path in directory.glob(pattern)})
    if index is not None:
        _by_index(directory, index, present, found)
    elif SINGLE_NAME in present:
        _single(directory, present, found)
    elif present:
        found.problems.append(
            Problem(f"{name_list(present)} without {INDEX_NAME}", f"fetch {INDEX_NAME} that says which tensor is where")
        )
    elif pickles:
        found.problems.append(
            Problem(f"the weights are pickles ({name_list(pickles)}), which are not opened", "save them as safetensors")
        )
    else:
        found.problems.append(Problem("there are no weights (*.safetensors)", "fetch the model's weights"))
    if present and pickles:
        found.notes.append(f"ignored: {name_list(pickles)} beside the safetensors files")
    return found


def _by_index(directory: Path, index: Mapping[str, Json], present: list[str], found: WeightFiles) -> None:
    holds: dict[str, set[str]] = defaultdict(set)
    if not index:
        # The index could not be read, and that was reported where it was read.
        return
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        found.problems.append(Problem(f"{INDEX_NAME} has no weight_map", "fetch the index again"))
        return
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            found.problems.append(
                Problem(f"{INDEX_NAME} maps {name} to {file!r}, which is no file of this directory", "fetch it again")
            )
            continue
        holds[file].add(name)
    found.listed.extend(weight_map)
    found.files.extend([INDEX_NAME, *sorted(holds)])
    for file, names in sorted(holds.items()):
        if (directory / file).exists():
            _shard(directory / file, names, found)
        else:
            found.problems.append(
                Problem(f"the shard {file} is missing; it holds {name_list(sorted(names))}", f"fetch {file}")
            )
    stray = [name for name in present if name not in holds]
    if stray:
        found.notes.append(f"ignored: {name_list(stray)}, which {INDEX_NAME} does not name")


def _shard(path: Path, names: set[str], found: WeightFiles) -> None:
    headers = _headers(path, found)
    if headers is None:
        return
    lacking = sorted(names - set(headers))
    if lacking:
        found.problems.append(
            Problem(
                f"{INDEX_NAME} maps {name_list(lacking)} to {path.name}, whose header lacks it",
                f"fetch {path.name} and the index again, from one revision",
            )
        )
    unlisted = sorted(set(headers) - names)
    if unlisted:
        found.problems.append(
            Problem(
                f"{path.name} holds {name_list(unlisted)}, which {INDEX_NAME} does not map to it",
                f"fetch {path.name} and the index again, from one revision",
            )
        )
    found.tensors.extend(headers[name] for name in sorted(names & set(headers)))


def _single(directory: Path, present: list[str], found: WeightFiles) -> None:
    found.files.append(SINGLE_NAME)
    headers = _headers(directory / SINGLE_NAME, found)
    if headers is None:
        return
    found.tensors.extend(headers[name] for name in sorted(headers))
    for other in present:
        if other == SINGLE_NAME:
            continue
        others = _headers(directory / other, found) or {}
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


def _headers(path: Path, found: WeightFiles) -> dict[str, TensorHeader] | None:
    try:
        return read_tensor_headers(path)[0]
    except Failure as failure:
        found.problems.append(Problem(failure.message, failure.hint))
        return None
