"""Notes in the draft's training receipt which model file its weights make, so that every machine can check it."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from draftyard.doors.demo_artifact import file_digest
from draftyard.doors.demo_draft import TRAINING_RECEIPT, WEIGHTS, write_draft

HERE = Path(__file__).parent


def seal(target: Path, trained: Path) -> str:
    """Write `model_sha256` into the receipt in `trained` and return it; weights and receipt must belong together."""
    path = trained / TRAINING_RECEIPT
    receipt = json.loads(path.read_text(encoding="utf-8"))
    if receipt["weights_sha256"] != file_digest(trained / WEIGHTS):
        raise SystemExit(f"{WEIGHTS} is not the file that {TRAINING_RECEIPT} was written for: train again")
    with tempfile.TemporaryDirectory() as made:
        write_draft(target, trained / WEIGHTS, Path(made))
        receipt["model_sha256"] = file_digest(Path(made) / "model.safetensors")
    path.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    return str(receipt["model_sha256"])


def main() -> None:
    """Seal the committed draft."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=HERE.parent / "out/models/smollm2-135m-instruct")
    parser.add_argument("--trained", type=Path, default=HERE / "draft")
    asked = parser.parse_args()
    print(seal(asked.target, asked.trained))


if __name__ == "__main__":
    main()
