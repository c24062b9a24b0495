"""Raw records and reports on disk: every finished tier is kept at once, so that an interrupted run resumes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from draftyard.nouns.digest import Json, digest
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.report import EvidenceFile, Report
from draftyard.nouns.timeline import RequestRecord

RECORDS = TypeAdapter(RequestRecord)
RECORDS_NAME = "requests.jsonl"
CELL_NAME = "cell.json"


class CellFacts(BaseModel):
    """What a tier's records are: what was asked, when, and the digest of the file beside it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: dict[str, object]
    measured_at: str
    client_cpu_cores: float
    records: int
    sha256: str
    client_lag_ms: float = 0.0
    kv_cache_share: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured tier. `reused` when it was read from disk."""

    facts: CellFacts
    records: tuple[RequestRecord, ...]
    file: EvidenceFile
    reused: bool


class EvidenceStore:
    """The raw records below one artifact directory, found by repository key and what was asked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, repository_key: str, parameters: Mapping[str, Json]) -> Cell | None:
        """The tier that was measured with exactly these parameters; None when there is none or its bytes changed."""
        folder = self._folder(repository_key, parameters)
        try:
            facts = CellFacts.model_validate_json((folder / CELL_NAME).read_bytes())
            data = (folder / RECORDS_NAME).read_bytes()
            if hashlib.sha256(data).hexdigest() != facts.sha256:
                return None
            records = tuple(RECORDS.validate_json(line) for line in data.splitlines())
        except (FileNotFoundError, ValidationError):
            return None
        return Cell(facts, records, self._evidence(folder, facts.sha256, len(data), len(records)), True)

    def save(
        self,
        repository_key: str,
        parameters: Mapping[str, Json],
        records: Sequence[RequestRecord],
        measured_at: str,
        client_cpu_cores: float,
        client_lag_ms: float = 0.0,
        kv_cache_share: float | None = None,
    ) -> Cell:
        """Write the records, then what they are; a killed run leaves no tier that looks finished."""
        folder = self._folder(repository_key, parameters)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CELL_NAME).unlink(missing_ok=True)
        data = b"".join(RECORDS.dump_json(record) + b"\n" for record in records)
        write_whole(folder / RECORDS_NAME, data)
        sha256 = hashlib.sha256(data).hexdigest()
        facts = CellFacts(
            parameters=dict(parameters),
            measured_at=measured_at,
            client_cpu_cores=client_cpu_cores,
            records=len(records),
            sha256=sha256,
            client_lag_ms=client_lag_ms,
            kv_cache_share=kv_cache_share,
        )
        write_whole(folder / CELL_NAME, facts.model_dump_json(indent=2).encode() + b"\n")
        return Cell(facts, tuple(records), self._evidence(folder, sha256, len(data), len(records)), False)

    def _folder(self, repository_key: str, parameters: Mapping[str, Json]) -> Path:
        return self._directory / "evidence" / repository_key[:16] / digest(parameters)[:16]

    def _evidence(self, folder: Path, sha256: str, size_bytes: int, records: int) -> EvidenceFile:
        path = (folder / RECORDS_NAME).relative_to(self._directory).as_posix()
        return EvidenceFile(path=path, sha256=sha256, size_bytes=size_bytes, records=records)


def write_whole(path: Path, data: bytes) -> None:
    """Write beside and rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(data)
    beside.replace(path)


def write_report(report: Report, path: Path) -> None:
    """The report as indented JSON."""
    write_whole(path, report.model_dump_json(indent=2).encode() + b"\n")


def read_report(path: Path) -> Report:
    """A report from disk; Failure when it is missing or not one."""
    try:
        return Report.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise Failure(f"no report at {path}", "run `draftyard verify` first", ExitCode.ENVIRONMENT) from None
    except ValidationError as error:
        raise Failure(f"{path} is no report: {str(error).splitlines()[0]}", "verify again to write a new one") from None
