"""Finds the small weights that come with the project, and what their training receipts promise of the models made."""

import json
from collections.abc import Callable
from pathlib import Path

from draftyard.doors.demo_artifact import file_digest, finished_digests, require_digest, staged, write_receipt
from draftyard.doors.shipped_files import ROOTS
from draftyard.nouns.errors import ExitCode, Failure

WEIGHTS = "weights.safetensors"
TRAINING_RECEIPT = "receipt.json"


def shipped_weights(name: str) -> Path:
    """The directory of committed weights and training receipt of `name` (draft, medusa, eagle).

    Failure when it is not installed.
    """
    for root in ROOTS:
        directory = root / "engines" / "demo" / name
        if (directory / WEIGHTS).is_file():
            return directory
    raise Failure(
        f"engines/demo/{name}/{WEIGHTS} is missing",
        f"run this in a checkout of the project, or train it with engines/demo/train_{name}.py",
        ExitCode.ENVIRONMENT,
    )


def materialise(
    target: Path, trained: Path, directory: Path, layout: str, write: Callable[[Path, Path, Path], None]
) -> dict[str, str]:
    """Let `write(target, weights, stage)` fill `directory`; returns SHA-256 by file name.

    Does nothing when the directory was made before from the same target, weights and `layout`. Failure when weights
    and receipt in `trained` do not belong together, or when the result is not the one that the receipt names.
    """
    receipt = _read_training_receipt(trained)
    made_from = {"layout": layout, "target": file_digest(target / "tokenizer.json"), **receipt}
    if (digests := finished_digests(directory, made_from)) is not None:
        return digests
    require_digest(WEIGHTS, file_digest(trained / WEIGHTS), receipt["weights_sha256"])
    with staged(directory) as stage:
        write(target, trained / WEIGHTS, stage)
        digests = write_receipt(stage, made_from)
        require_digest(f"model.safetensors of {directory.name}", digests["model.safetensors"], receipt["model_sha256"])
    return digests


def _read_training_receipt(trained: Path) -> dict[str, str]:
    path = trained / TRAINING_RECEIPT
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {key: str(document[key]) for key in ("weights_sha256", "model_sha256")}
    except (OSError, ValueError, KeyError) as error:
        raise Failure(
            f"{path.name} beside trained weights cannot be used: {error}",
            "run engines/demo/seal.py after training",
        ) from error
