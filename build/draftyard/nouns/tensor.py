"""What is known of a stored tensor before its bytes are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from draftyard.nouns.enums import StrEnum

# By the text of a member, which is its hash: a large model asks this thousands of times.
_ITEM_BYTES: dict[str, int] = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}


class TensorType(StrEnum):
    """Element types, spelt as in a safetensors header."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    F8_E4M3 = "F8_E4M3"
    I64 = "I64"
    I32 = "I32"
    I16 = "I16"
    I8 = "I8"
    U8 = "U8"
    BOOL = "BOOL"

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return _ITEM_BYTES.get(self, 1)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be written: name, element type and shape, before there are any bytes."""

    name: str
    type: TensorType
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.type.item_bytes


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor in one file: element type, shape, and where its bytes lie (absolute offset in the file)."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    file: str
    offset_bytes: int
    size_bytes: int


class TensorFile(Protocol):
    """An open safetensors file: headers by name and the raw little-endian bytes of each tensor."""

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        """Headers by tensor name."""
        ...

    def read(self, name: str) -> memoryview:
        """The bytes of one tensor, mapped, not copied; KeyError when it is absent."""
        ...


def name_list(names: Sequence[str]) -> str:
    """Names for a message: ten at most, and how many there are."""
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more ({len(names)} in all)"
