"""Looks into a model directory and says what it is, or everything that is wrong with it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftyard.doors.model_directory import content_digest, read_model_directory
from draftyard.doors.speculator_directory import read_speculator_directory
from draftyard.doors.tensors import open_weights, same_bytes
from draftyard.doors.tokenizer_files import encode_texts, read_vocabulary
from draftyard.doors.weight_files import HeaderReader
from draftyard.nouns.errors import Problem, raise_problems
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.recipe import Limits
from draftyard.nouns.source import ModelFiles, Source
from draftyard.nouns.speculator_source import SpeculatorSource
from draftyard.nouns.tensor import TensorHeader, TensorType
from draftyard.nouns.tokenizer_behaviour import TokenizerBehaviour
from draftyard.rules.agree import agree, same_tokenizer
from draftyard.rules.agree_heads import embedding_problems, sampled_rows, vocabulary_problems
from draftyard.rules.inspection import EMBEDDING_NAME, HEAD_NAME, examine
from draftyard.rules.speculators.examination import SpeculatorExamination, examine_speculator
from draftyard.rules.speculators.known_speculators import recognise
from draftyard.rules.speculators.vocabulary_map import map_problems
from draftyard.rules.tokenizer_agreement import probe_texts

if TYPE_CHECKING:
    # Plans of recipes need no arrays; importing them would take longer than the plan.
    import numpy as np
    from numpy.typing import NDArray

_BOTH_ENDS = (EMBEDDING_NAME, HEAD_NAME)


def pickle_reader(allowed: bool) -> HeaderReader | None:
    """How pickles are opened where they are allowed: by torch, which takes seconds to import."""
    if not allowed:
        return None
    from draftyard.engine.pickled_weights import pickle_headers

    return pickle_headers


def inspect(directory: Path, cache: Path | None = None, *, allow_pickle: bool = False) -> Source:
    """The facts of a model directory, each resolved once.

    Weights are read only for the digest, and where a tied head is stored a second time. `cache` is a directory where
    hashes of unchanged files are remembered. Failure names every contradiction at once.
    """
    files = read_model_directory(directory, pickle_reader(allow_pickle), cache)
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
        fp8=inspection.fp8,
    )


def inspect_speculator(
    directory: Path, asked: SpeculatorKind | None = None, cache: Path | None = None, *, allow_pickle: bool = False
) -> SpeculatorSource:
    """The facts of a directory with a speculator's weights; `asked` is the kind that a recipe names.

    Weights are read only for the digest, and the map of a reduced vocabulary. Failure names every contradiction at
    once.
    """
    files = read_speculator_directory(directory, pickle_reader(allow_pickle), cache)
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


def speculator_kind(directory: Path, cache: Path | None = None) -> SpeculatorKind | None:
    """Which speculator's tensors a directory holds; None for a whole model, which may end in a module, and for others.

    Nothing is checked, and pickles are not opened.
    """
    if not directory.is_dir():
        return None
    tensors = read_speculator_directory(directory, None, cache).tensors
    whole = any(tensor.name == EMBEDDING_NAME for tensor in tensors) and any(
        tensor.name.startswith("model.layers.0.self_attn.") for tensor in tensors
    )
    found = recognise(tensors)
    return None if whole or isinstance(found, Problem) else found.page.kind


def pair(target: Source, draft: Source, limits: Limits, lanes: tuple[Lane, ...] = ()) -> tuple[str, ...]:
    """Check that a draft goes with a target; returns notes. Failure shows the first token ids that differ."""
    agreement = agree(target, draft, limits, _behaviours(target, draft), lanes)
    raise_problems(agreement.problems)
    return agreement.notes


def _behaviours(target: Source, draft: Source) -> tuple[TokenizerBehaviour, TokenizerBehaviour] | None:
    """What both tokenizers do; None when they are the same files, or one model."""
    if same_tokenizer(target, draft) or target.path == draft.path:
        return None
    vocabularies = [read_vocabulary(Path(source.path)) for source in (target, draft)]
    probes = probe_texts(vocabularies[0])
    first, second = (
        TokenizerBehaviour(vocabulary, encode_texts(Path(source.path), probes))
        for vocabulary, source in zip(vocabularies, (target, draft), strict=True)
    )
    return first, second


def pair_heads(target: Source, source: SpeculatorSource) -> tuple[str, ...]:
    """Check that a speculator's weights go with a target, as far as tokens and embeddings tell; returns notes.

    Of an embedding that the speculator carries some rows are read, and the target's same ones.
    """
    problems = vocabulary_problems(target, source)
    own = next((tensor for tensor in source.tensors if tensor.name.endswith(".embed_tokens.weight")), None)
    table = next(tensor for tensor in target.tensors if tensor.name == EMBEDDING_NAME)
    notes: tuple[str, ...] = ()
    if own is not None and own.shape == table.shape:
        rows = sampled_rows(min(own.shape[0], target.tokenizer.largest_id + 1))
        stored = replace(own, name=source.stored_names[own.name])
        problems.extend(embedding_problems(_rows(source.path, stored, rows), _rows(target.path, table, rows), rows))
        notes = (f"{len(rows)} rows of its embedding point where the target's do",)
    raise_problems(problems)
    return notes


def _rows(directory: str, header: TensorHeader, rows: tuple[int, ...]) -> "NDArray[np.float32]":
    """Some rows of a table in float32."""
    import numpy as np

    from draftyard.rules.casting import cast

    data = open_weights(Path(directory) / header.file, [header]).read(header.name)
    width = header.shape[1]
    row_bytes = width * header.type.item_bytes
    pieces = [
        cast(data[row * row_bytes : (row + 1) * row_bytes], (1, width), header.type, TensorType.F32).values
        for row in rows
    ]
    return np.concatenate(pieces).astype(np.float32)


def _compare_map(directory: Path, found: SpeculatorExamination) -> list[Problem]:
    """The values of a map, read whole: they are few."""
    if found.recognised is None or found.network is None or not found.network.mapped:
        return []
    import numpy as np

    views = {
        name.rpartition(".")[2]: open_weights(directory / header.file, [header]).read(header.name)
        for name, header in found.recognised.tensors.items()
        if name.endswith((".d2t", ".t2d"))
    }
    marks = np.frombuffer(views["t2d"], np.bool_) if "t2d" in views else None
    return map_problems(np.frombuffer(views["d2t"], np.int64), marks, found.network.vocab_size or 0)


def _compare_head(directory: Path, files: ModelFiles, notes: list[str]) -> list[Problem]:
    headers = {tensor.name: tensor for tensor in files.tensors}
    views = [open_weights(directory / headers[name].file, files.tensors).read(name) for name in _BOTH_ENDS]
    if headers[EMBEDDING_NAME].type is headers[HEAD_NAME].type and same_bytes(*views):
        notes.append(f"{HEAD_NAME} is a copy of the embedding and is ignored")
        return []
    return [
        Problem(
            f"config.json says the embeddings are tied, but {HEAD_NAME} differs from {EMBEDDING_NAME}",
            "set tie_word_embeddings to false if the head was trained apart, or remove the head from the files",
        )
    ]
