"""Cuts padded token arrays to their true lengths."""

import numpy as np
import numpy.typing as npt
from bad_input import BadInput


def valid_ids(tokens: "npt.NDArray[np.generic]", lengths: "npt.NDArray[np.generic]") -> tuple[tuple[int, ...], ...]:
    """tokens [batch, beam, n] and lengths [batch, beam] to one run of ids per sequence, batch first."""
    if tokens.ndim != 3 or lengths.size != tokens.shape[0] * tokens.shape[1]:
        raise BadInput(
            f"TOKENS_BATCH has shape {list(tokens.shape)} and SEQUENCE_LENGTH {list(lengths.shape)}: "
            "expected [batch, beam, tokens] and [batch, beam]"
        )
    rows = tokens.reshape(-1, tokens.shape[2])
    counts = [int(count) for count in lengths.reshape(-1)]
    if any(count < 0 or count > rows.shape[1] for count in counts):
        raise BadInput(f"SEQUENCE_LENGTH {counts} does not fit into {rows.shape[1]} tokens")
    return tuple(tuple(int(token) for token in row[:count]) for row, count in zip(rows, counts, strict=True))
