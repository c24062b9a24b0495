"""Reads the two-row form of a word list back."""

import numpy as np
import numpy.typing as npt


def word_rows(rows: "npt.NDArray[np.generic]") -> tuple[tuple[int, ...], ...]:
    """[1, 2, n] ids and ends to runs of ids; -1 in the row of ends fills it up."""
    flat, ends = (row.tolist() for row in np.asarray(rows).reshape(2, -1))
    words, start = [], 0
    for end in ends:
        if end < 0:
            break
        words.append(tuple(flat[start:end]))
        start = end
    return tuple(words)
