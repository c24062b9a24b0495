"""Facts read from a directory with the weights of a speculator, each resolved once; tensors decide, settings follow."""

from collections.abc import Mapping
from dataclasses import dataclass

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Network
from draftyard.nouns.source import TokenizerFacts
from draftyard.nouns.tensor import TensorHeader, TensorType


@dataclass(frozen=True, slots=True)
class SpeculatorNetwork:
    """Sizes of a speculator that hangs on a target's features. Counts are global (before sharding).

    `target_hidden_size` is the width of one feature of the target. `heads` and `head_layers` belong to Medusa, whose
    heads have no decoder; `decoder` describes the layers of the others (its `hidden_size` is the speculator's own).
    `vocab_size` counts the target's ids, `draft_vocab_size` the rows of the speculator's own head; either is None when
    neither settings nor tensors say it. `taps` are the counts of target layers whose features are read, when the
    settings name them. `own_head` and `own_embedding`: stored here; otherwise they are the target's.
    """

    kind: SpeculatorKind
    target_hidden_size: int
    vocab_size: int | None
    draft_vocab_size: int | None
    heads: int = 0
    head_layers: int = 0
    decoder: Network | None = None
    own_head: bool = False
    own_embedding: bool = False
    input_bias: bool = False
    mapped: bool = False
    taps: tuple[int, ...] | None = None

    @property
    def reduced(self) -> bool:
        """True when drafts come from a part of the target's vocabulary."""
        return self.draft_vocab_size is not None and self.draft_vocab_size != self.vocab_size


@dataclass(frozen=True, slots=True)
class SpeculatorSource:
    """One directory with a speculator's weights. `digest` is over contents only.

    `tensors` are those in use, under the names of this project's pages; `stored_names` gives the name in the files for
    each. `notes` are findings that were resolved (for people); contradictions raise instead.
    """

    path: str
    digest: str
    network: SpeculatorNetwork
    weight_type: TensorType
    tensors: tuple[TensorHeader, ...]
    stored_names: Mapping[str, str]
    tokenizer: TokenizerFacts | None = None
    notes: tuple[str, ...] = ()

    @property
    def pickled(self) -> bool:
        """True when the weights lie in pickles, which only a permission opens."""
        return any(not tensor.file.endswith(".safetensors") for tensor in self.tensors)

    @property
    def kind(self) -> SpeculatorKind:
        """What the tensors say it is."""
        return self.network.kind

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors in use."""
        return sum(tensor.size_bytes for tensor in self.tensors)
