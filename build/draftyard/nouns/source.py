"""Facts read from a model directory, each resolved once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.nouns.network import Network
from draftyard.nouns.tensor import TensorHeader, TensorType


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What pairing and packaging need of a tokenizer.

    `digest` covers every tokenizer file that is served; `vocabulary_digest` covers the pairs of id and text alone, so
    that equal vocabularies have equal digests however their files differ.
    """

    digest: str
    vocabulary_digest: str
    vocabulary_size: int
    largest_id: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    adds_bos: bool
    chat_template: str | None


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a model directory holds, as read, nothing resolved; `problems` are what is wrong with the files themselves.

    The parsed files are empty when absent. `listed` are the tensors that an index promises, found or not; `hashed`
    names the files that decide the content, in order. `quantisation` is ModelOpt's `hf_quant_config.json`.
    """

    path: str
    config: Mapping[str, Json]
    generation_config: Mapping[str, Json]
    tokenizer: TokenizerFacts | None
    tensors: tuple[TensorHeader, ...]
    listed: tuple[str, ...]
    hashed: tuple[str, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    quantisation: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredFp8:
    """Weights that are FP8 in the files, with one static scale a tensor; `method` is who wrote them.

    `excluded` are the patterns of what is not FP8; `cache_scales` tells whether keys and values have scales.
    """

    method: str
    excluded: tuple[str, ...]
    cache_scales: bool


@dataclass(frozen=True, slots=True)
class Source:
    """One model directory. `digest` is over contents only: names of directories and times are no part of it.

    `end_ids` is the union of the ids in `generation_config.json` and `config.json`, the tokenizer's first.
    `notes` are findings that were resolved (for people); contradictions raise instead. `weight_type` is that of what is
    not FP8.
    """

    path: str
    digest: str
    network: Network
    weight_type: TensorType
    tensors: tuple[TensorHeader, ...]
    tokenizer: TokenizerFacts
    end_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()
    fp8: StoredFp8 | None = None

    @property
    def pickled(self) -> bool:
        """True when the weights lie in pickles, which only a permission opens."""
        return any(not tensor.file.endswith(".safetensors") for tensor in self.tensors)

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
