"""Who executes an engine, and the ways to speculate."""

from draftyard.nouns.enums import StrEnum


class Lane(StrEnum):
    """The three executors."""

    TENSORRT = "tensorrt"
    LLMAPI = "llmapi"
    REFERENCE = "reference"


class SpeculatorKind(StrEnum):
    """Ways to propose tokens; `none` is plain decoding."""

    NONE = "none"
    NGRAM = "ngram"
    DRAFT_TARGET = "draft_target"
    MEDUSA = "medusa"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    MTP = "mtp"
    LOOKAHEAD = "lookahead"
