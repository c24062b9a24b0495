"""What lies in an engine directory: `config.json` and one file of tensors a rank."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from draftyard.engine.configuration import DecoderShape
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.tensor import TensorFile

OpenTensors = Callable[[Path], TensorFile]


def read_config(directory: Path) -> Mapping[str, Json]:
    """The engine's config; Failure when it is absent or no JSON object."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Failure(f"{directory} has no config.json", "name an engine directory", ExitCode.ENVIRONMENT) from None
    except ValueError as error:
        raise Failure(f"{path} is not JSON: {error}", "build the engine again", ExitCode.ENVIRONMENT) from None
    if not isinstance(config, dict):
        raise Failure(f"{path} is not a JSON object", "build the engine again", ExitCode.ENVIRONMENT)
    return config


def open_ranks(directory: Path, shape: DecoderShape, open_tensors: OpenTensors) -> list[TensorFile]:
    """All rank files of a decoder; Failure when one is missing."""
    paths = [directory / f"rank{rank}.safetensors" for rank in range(shape.tp_size * shape.pp_size)]
    for path in paths:
        if not path.is_file():
            raise Failure(f"{path} is missing", "build the engine again", ExitCode.ENVIRONMENT)
    return [open_tensors(path) for path in paths]
