"""Reads the fitted coefficients that travel with the package; keeps and reads those that a calibration here left."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from draftyard.doors.shipped_files import PACKAGE_DIRECTORY
from draftyard.nouns.calibration import CALIBRATION_SCHEMA, CalibrationFile
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


def read_calibration(out: Path) -> CalibrationFile:
    """What was calibrated here, without entries when nothing was; Failure when the file is broken."""
    path = calibration_path(out)
    hint = f"remove {path} and calibrate again"
    try:
        found = CalibrationFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return CalibrationFile()
    except ValidationError as error:
        raise Failure(f"{path} is broken: {str(error).splitlines()[0]}", hint, ExitCode.ENVIRONMENT) from None
    if found.schema_version != CALIBRATION_SCHEMA:
        raise Failure(f"{path} has version {found.schema_version}", hint, ExitCode.ENVIRONMENT)
    return found


def write_calibration(calibration: CalibrationFile, out: Path) -> Path:
    """Keep a calibration; returns where."""
    path = calibration_path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(calibration.model_dump_json(indent=2).encode() + b"\n")
    beside.replace(path)
    return path


def prompt_tokens(records: Path) -> Mapping[int, float]:
    """Mean prompt tokens of the successful requests in a file of raw records, by concurrency; lengths that the server
    did not tell are left out."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for line in records.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        tokens = record["timeline"].get("input_tokens")
        if tokens and record["timeline"].get("outcome") == "success":
            found[int(record["concurrency"])].append(int(tokens))
    return {load: sum(values) / len(values) for load, values in found.items()}
