"""Keeps what was measured of this machine."""

from pathlib import Path

from pydantic import ValidationError

from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.host_speed import HOST_SPEED_SCHEMA, HostSpeed


def host_speed_path(out: Path) -> Path:
    """Where the measurement of this machine lies below the output directory."""
    return out / "deploy" / "out" / "host-speed.json"


def read_host_speed(out: Path) -> HostSpeed | None:
    """What was measured last, None when nothing was; Failure when the file is broken or of another version."""
    path = host_speed_path(out)
    hint = "measure again: draftyard doctor --measure"
    try:
        found = HostSpeed.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Failure(f"{path} is broken: {str(error).splitlines()[0]}", hint, ExitCode.ENVIRONMENT) from None
    if found.schema_version != HOST_SPEED_SCHEMA:
        raise Failure(f"{path} has version {found.schema_version}", hint, ExitCode.ENVIRONMENT)
    return found


def write_host_speed(speed: HostSpeed, out: Path) -> Path:
    """Keep a measurement; returns where."""
    path = host_speed_path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(speed.model_dump_json(indent=2).encode() + b"\n")
    beside.replace(path)
    return path
