"""Takes the places of the building machine out of texts that leave it; what they name stays."""

import re

from draftyard.nouns.digest import Json

# An absolute path, or one that climbs, at a place where a word or a value begins.
_PATH = re.compile(r"(?<![\w./:\-<>])(?:/|~/|(?:\.\./)+)[^\s'\"`,;:|()\[\]{}<>=]+")
_URL_FILE = re.compile(r"\bfile://[^\s'\"]+")
_KEPT = re.compile(r"[0-9a-f]{64}|[^/]*\.(?:json|jsonl|yaml|yml|log|cache|safetensors|engine|py|whl)")


def redacted(text: str) -> str:
    """The text with `<path>` for each path of the machine; names of artefacts and of files stay behind it."""
    return _PATH.sub(_shown, _URL_FILE.sub("<path>", text))


def redacted_json(value: Json) -> Json:
    """The same for every text in a JSON value; keys stay."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted_json(item) for item in value]
    return value


def _shown(match: "re.Match[str]") -> str:
    name = match.group().rstrip("/").rpartition("/")[2]
    return f"<path>/{name}" if _KEPT.fullmatch(name) else "<path>"
