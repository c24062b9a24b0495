"""Notes in a training receipt which model file its weights make, so that every machine can check it."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from draftyard.doors.demo_artifact import file_digest
from draftyard.doors.demo_draft import write_draft
from draftyard.doors.demo_heads import write_eagle, write_medusa
from draftyard.doors.demo_trained import TRAINING_RECEIPT, WEIGHTS

HERE = Path(__file__).parent
WRITERS: Mapping[str, Callable[[Path, Path, Path], None]] = {
    "draft": write_draft,
    "medusa": write_medusa,
    "eagle": write_eagle,
}


def seal(target: Path, trained: Path, write: Callable[[Path, Path, Path], None]) -> str:
    """Write `model_sha256` into the receipt in `trained` and return it; weights and receipt must belong together."""
    path = trained / TRAINING_RECEIPT
    receipt = json.loads(path.read_text(encoding="utf-8"))
    if receipt["weights_sha256"] != file_digest(trained / WEIGHTS):
        raise SystemExit(f"{WEIGHTS} is not the file that {TRAINING_RECEIPT} was written for: train again")
    with tempfile.TemporaryDirectory() as made:
        write(target, trained / WEIGHTS, Path(made))
        receipt["model_sha256"] = file_digest(Path(made) / "model.safetensors")
    path.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    return str(receipt["model_sha256"])


def main() -> None:
    """Seal committed weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=tuple(WRITERS))
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--trained", type=Path)
    asked = parser.parse_args()
    print(seal(asked.target, asked.trained or HERE / asked.kind, WRITERS[asked.kind]))


if __name__ == "__main__":
    main()
