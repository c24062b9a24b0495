"""Reads and writes the `config.json` of checkpoints and engines."""

import json
from collections.abc import Mapping
from pathlib import Path

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure


def read_config(path: Path) -> Mapping[str, Json]:
    """A JSON object; Failure when the file is absent or broken."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failure(
            f"{path.name} in {path.parent.name} cannot be read: {error}", "build the artefact again"
        ) from error
    if not isinstance(document, dict):
        raise Failure(f"{path.name} in {path.parent.name} holds no JSON object", "build the artefact again")
    return document


def write_config(path: Path, config: Mapping[str, Json]) -> None:
    """Write a JSON object, keys sorted, so that equal values give equal bytes."""
    text = json.dumps(config, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(
            f"{path.name} cannot be written: {error.strerror}", "check the disk", ExitCode.ENVIRONMENT
        ) from error
