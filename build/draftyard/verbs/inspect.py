"""Looks into a model directory and says what it is, or everything that is wrong with it."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from draftyard.doors.model_directory import content_digest, read_model_directory
from draftyard.doors.speculator_directory import read_speculator_directory
from draftyard.doors.tensors import open_tensor_file, same_bytes
from draftyard.doors.tokenizer_files import read_vocabulary
from draftyard.nouns.errors import Problem, raise_problems
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.recipe import Limits
from draftyard.nouns.source import ModelFiles, Source
from draftyard.nouns.speculator_source import SpeculatorSource
from draftyard.rules.agree import agree, agreement_notes, same_vocabulary
from draftyard.rules.inspection import EMBEDDING_NAME, HEAD_NAME, examine
from draftyard.rules.speculators.examination import SpeculatorExamination, examine_speculator
from draftyard.rules.speculators.vocabulary_map import map_problems


def inspect(directory: Path, cache: Path | None = None) -> Source:
    """The facts of a model directory, each resolved once.

    Weights are read only for the digest, and where a tied head is stored a second time. `cache` is a directory where
    hashes of unchanged files are remembered. Failure names every contradiction at once.
    """
    files = read_model_directory(directory)
    inspection = examine(files)
    notes = list(inspection.notes)
    problems = list(inspection.problems)
    if inspection.head_copy and not problems:
        problems.extend(_compare_head(directory, files, notes))
    raise_problems(problems)
    if inspection.network is None or files.tokenizer is None:
        raise AssertionError("a model without problems has a network and a tokenizer")
    return Source(
        path=str(directory.resolve()),
        digest=content_digest(directory, files.hashed, cache),
        network=inspection.network,
        weight_type=inspection.weight_type,
        tensors=files.tensors,
        tokenizer=files.tokenizer,
        end_ids=inspection.end_ids,
        notes=tuple(notes),
    )


def inspect_speculator(
    directory: Path, asked: SpeculatorKind | None = None, cache: Path | None = None
) -> SpeculatorSource:
    """The facts of a directory with a speculator's weights; `asked` is the kind that a recipe names.

    Weights are read only for the digest, and the map of a reduced vocabulary. Failure names every contradiction at
    once.
    """
    files = read_speculator_directory(directory)
    found = examine_speculator(files, asked)
    problems = list(found.problems)
    if not problems:
        problems.extend(_compare_map(directory, found))
    raise_problems(problems)
    if found.network is None or found.recognised is None:
        raise AssertionError("a speculator without problems has a network")
    return SpeculatorSource(
        path=str(directory.resolve()),
        digest=content_digest(directory, files.hashed, cache),
        network=found.network,
        weight_type=found.weight_type,
        tensors=tuple(replace(header, name=name) for name, header in sorted(found.recognised.tensors.items())),
        stored_names=found.recognised.stored_names,
        tokenizer=files.tokenizer,
        notes=found.notes,
    )


def pair(target: Source, draft: Source, limits: Limits) -> tuple[str, ...]:
    """Check that a draft goes with a target; returns notes. Failure shows the first token ids that differ."""
    tables = None
    if not same_vocabulary(target, draft):
        tables = (read_vocabulary(Path(target.path)), read_vocabulary(Path(draft.path)))
    raise_problems(agree(target, draft, limits, tables))
    return agreement_notes(target, draft)


def _compare_map(directory: Path, found: SpeculatorExamination) -> list[Problem]:
    """The values of a map, read whole: they are few."""
    if found.recognised is None or found.network is None or not found.network.mapped:
        return []
    views = {
        name.rpartition(".")[2]: open_tensor_file(directory / header.file).read(found.recognised.stored_names[name])
        for name, header in found.recognised.tensors.items()
        if name.endswith((".d2t", ".t2d"))
    }
    marks = np.frombuffer(views["t2d"], np.bool_) if "t2d" in views else None
    return map_problems(np.frombuffer(views["d2t"], np.int64), marks, found.network.vocab_size or 0)


def _compare_head(directory: Path, files: ModelFiles, notes: list[str]) -> list[Problem]:
    headers = {tensor.name: tensor for tensor in files.tensors}
    views = [open_tensor_file(directory / headers[name].file).read(name) for name in (EMBEDDING_NAME, HEAD_NAME)]
    if headers[EMBEDDING_NAME].type is headers[HEAD_NAME].type and same_bytes(*views):
        notes.append(f"{HEAD_NAME} is a copy of the embedding and is ignored")
        return []
    return [
        Problem(
            f"config.json says the embeddings are tied, but {HEAD_NAME} differs from {EMBEDDING_NAME}",
            "set tie_word_embeddings to false if the head was trained apart, or remove the head from the files",
        )
    ]
