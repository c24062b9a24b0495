"""Reads the fitted coefficients that travel with the package, and those that a calibration of this place left."""

import json
from collections.abc import Mapping
from pathlib import Path

from draftyard.doors.shipped_files import PACKAGE_DIRECTORY
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure

_NAME = "prediction.json"


def read_coefficients() -> Mapping[str, Json]:
    """The document with the coefficients of every lane; Failure when the installation is broken."""
    places = (PACKAGE_DIRECTORY / _NAME, PACKAGE_DIRECTORY.parents[1] / "engines" / _NAME)
    for place in places:
        if place.is_file():
            try:
                document: Json = json.loads(place.read_text(encoding="utf-8"))
            except ValueError as error:
                raise Failure(f"{_NAME} is broken: {error}", "restore it from git", ExitCode.ENVIRONMENT) from error
            if isinstance(document, dict):
                return document
    raise Failure(f"{_NAME} is missing from the installation", "install draftyard again", ExitCode.ENVIRONMENT)


def calibration_path(out: Path) -> Path:
    """Where a calibration lies below the output directory."""
    return out / "deploy" / "out" / "calibration.json"
