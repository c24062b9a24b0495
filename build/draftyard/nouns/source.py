"""Facts read from a model directory, each resolved once."""

from dataclasses import dataclass

from draftyard.nouns.network import Network
from draftyard.nouns.tensor import TensorHeader, TensorType


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What pairing and packaging need of a tokenizer; `digest` covers `tokenizer.json` and the chat template."""

    digest: str
    vocabulary_size: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    adds_bos: bool
    chat_template: str | None


@dataclass(frozen=True, slots=True)
class Source:
    """One model directory. `digest` is over contents only: names of directories and times are no part of it.

    `end_ids` is the union of the ids in `generation_config.json` and `config.json`, the tokenizer's first.
    `notes` are findings that were resolved (for people); contradictions raise instead.
    """

    path: str
    digest: str
    network: Network
    weight_type: TensorType
    tensors: tuple[TensorHeader, ...]
    tokenizer: TokenizerFacts
    end_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def parameter_count(self) -> int:
        """Elements over all tensors of the files."""
        total = 0
        for tensor in self.tensors:
            elements = 1
            for extent in tensor.shape:
                elements *= extent
            total += elements
        return total
