"""Remembers facts of tokenizers that did not change: a large one takes a second to load, its facts are a few words."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from draftyard.doors.tokenizer_files import read_tokenizer, tokenizer_paths
from draftyard.nouns.digest import Json
from draftyard.nouns.source import TokenizerFacts

_CACHE_NAME = "tokenizer-facts.json"
_REMEMBERED: dict[str, TokenizerFacts] = {}


def remembered_tokenizer(directory: Path, settings: Mapping[str, Json], cache: Path | None) -> TokenizerFacts:
    """Facts of a directory's tokenizer, from memory where its files are those that were read before.

    Files are told apart by path, size, time of change and inode. `cache` is a directory where an earlier process kept
    them; nothing is written here, since a wrong request writes nothing. Failure as for `read_tokenizer`.
    """
    identity = _identity(directory)
    found = _REMEMBERED.get(identity) or _load(cache, identity) or read_tokenizer(directory, settings)
    _REMEMBERED[identity] = found
    return found


def keep_tokenizers(cache: Path | None) -> None:
    """Keep what this process has read for the next one."""
    stored = _stored(cache)
    new = {identity: asdict(facts) for identity, facts in _REMEMBERED.items() if identity not in stored}
    if cache is None or not new:
        return
    beside = cache / f"{_CACHE_NAME}.{os.getpid()}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps({**stored, **new}, indent=1), encoding="utf-8")
        beside.replace(cache / _CACHE_NAME)
    except OSError:
        # Only a cache: without it tokenizers are read again next time.
        return


def _identity(directory: Path) -> str:
    parts = []
    for path in tokenizer_paths(directory):
        place = path.resolve()
        state = place.stat()
        parts.append(f"{place}|{state.st_size}|{state.st_mtime_ns}|{state.st_ino}")
    return "||".join(parts)


def _load(cache: Path | None, identity: str) -> TokenizerFacts | None:
    stored = _stored(cache).get(identity)
    if stored is None:
        return None
    try:
        return TypeAdapter(TokenizerFacts).validate_python(stored)
    except ValidationError:
        # Written by another version: read the tokenizer again.
        return None


def _stored(cache: Path | None) -> dict[str, dict[str, object]]:
    if cache is None:
        return {}
    try:
        document = json.loads((cache / _CACHE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Only a cache: what cannot be read is made again.
        return {}
    return document if isinstance(document, dict) else {}
