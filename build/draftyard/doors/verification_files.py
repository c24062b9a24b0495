"""What a verification writes beside its report: JUnit XML, policies, and golden acceptance values."""

import hashlib
from pathlib import Path

from pydantic import ValidationError

from draftyard.doors.report_files import write_whole
from draftyard.nouns.errors import Failure
from draftyard.nouns.golden_acceptance import GoldenAcceptance
from draftyard.nouns.policy import Policy


def write_junit(text: str, path: Path) -> None:
    """The XML as it is."""
    write_whole(path, text.encode("utf-8"))


def write_policy_file(policy: Policy, report: Path | None, path: Path) -> None:
    """The policy as `draftyard package --policy` and a running entry read it.

    `report` is the file that it was decided in, whose digest goes into it; None while there is none yet.
    """
    sha256 = None if report is None else hashlib.sha256(report.read_bytes()).hexdigest()
    proven = policy.model_copy(update={"evidence": sha256})
    write_whole(path, proven.model_dump_json(indent=2).encode() + b"\n")


def write_golden(golden: GoldenAcceptance, path: Path) -> None:
    """Golden values as indented JSON."""
    write_whole(path, golden.model_dump_json(indent=2).encode() + b"\n")


def read_golden(path: Path) -> GoldenAcceptance:
    """Golden values from disk; Failure when the file is missing or none of ours."""
    try:
        return GoldenAcceptance.model_validate_json(path.read_bytes())
    except OSError as error:
        raise Failure(f"the golden file {path} cannot be read: {error.strerror}", "give one of a release") from None
    except ValidationError as error:
        words = f"{path.name} holds no golden acceptance: {str(error).splitlines()[0]}"
        raise Failure(words, "give the acceptance.json of a verification") from None
