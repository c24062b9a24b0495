"""The largest activations that a calibration saw, by module: what FP8 scales are made of."""

from collections.abc import Mapping
from dataclasses import dataclass

# Of the file that holds them; another number means that another version wrote it.
RANGES_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ActivationRanges:
    """`inputs`: max |x| at the input of each linear module, by checkpoint name with the layer's global index.

    One value for a dense module, one for each expert of a sparse one; None where no token came by. `keys` and `values`
    are those of the cached keys (after rotation) and values of each layer.
    """

    samples: int
    tokens: int
    inputs: Mapping[str, tuple[float | None, ...]]
    keys: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CalibrationTexts:
    """Where the texts of a calibration lie, and the SHA-256 over their bytes."""

    path: str
    digest: str
