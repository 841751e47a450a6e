"""Shapes of JSON texts: which of them begin and end as an object on one line, and may be nested deeply."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.state.numba_kernels import kernel

NOT_THERE, PLAIN, OTHER = 0, 1, 2
"""No text. A text from `{` to `}`, without a line break, with few opening marks. Any other text."""

_OPEN, _CLOSE, _LF, _CR = b"{}\n\r"
_CASE = 32
"""Bit in which `[` and `{` differ."""


def object_shapes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], most: int
) -> npt.NDArray[np.uint8]:
    """Return the shape of each text.

    Args:
        lengths: -1: there is no text.
        most: the most opening marks of a plain text, including those in strings. Its depth is at most as large.
    """
    shapes = np.empty(len(starts), np.uint8)
    _find_shapes(data, starts, lengths, most, shapes)
    return shapes


@kernel("void(u1[], i8[], i8[], i8, u1[]!)")
def _find_shapes(data: Any, starts: Any, lengths: Any, most: Any, shapes: Any) -> None:
    for i in range(len(starts)):
        if lengths[i] < 0:
            shapes[i] = NOT_THERE
            continue
        opened, breaks = np.int64(0), np.int64(0)
        for at in range(starts[i], starts[i] + lengths[i]):
            byte = data[at]
            opened += np.int64((byte | np.uint8(_CASE)) == _OPEN)
            breaks += np.int64(byte == _LF) + np.int64(byte == _CR)
        plain = lengths[i] > 1 and breaks == 0 and opened <= most
        if plain:
            plain = data[starts[i]] == _OPEN and data[starts[i] + lengths[i] - 1] == _CLOSE
        shapes[i] = PLAIN if plain else OTHER
