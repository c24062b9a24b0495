"""Reads and writes policy files."""

from pathlib import Path

from pydantic import ValidationError

from draftyard.nouns.errors import Failure
from draftyard.nouns.policy import Policy


def write_policy(path: Path, policy: Policy) -> None:
    """Write a policy as the entry reads it."""
    path.write_text(policy.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_policy(path: Path) -> Policy:
    """Read a policy file; Failure names everything in it that is wrong."""
    try:
        return Policy.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"the policy {path} cannot be read: {error.strerror}", "give a policy file") from None
    except (ValidationError, UnicodeDecodeError) as error:
        found = error.errors() if isinstance(error, ValidationError) else ()
        shown = "; ".join(f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}".lstrip(": ") for one in found)
        raise Failure(f"{path.name} is no policy: {shown or error}", "see: draftyard schema policy") from None
