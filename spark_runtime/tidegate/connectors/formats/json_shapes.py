"""Shapes of JSON texts: which of them begin and end as an object on one line, and may be nested deeply."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.state.byte_words import address_of, load_byte, load_word
from tidegate.state.numba_kernels import inlined, kernel

NOT_THERE, PLAIN, OTHER = 0, 1, 2
"""No text. A text from `{` to `}`, without a line break, with few opening marks. Any other text."""

_OPEN, _CLOSE, _LF, _CR = b"{}\n\r"
_CASE = 32
"""Bit in which `[` and `{` differ."""
_LOWS, _HIGHS, _SEVENS, _UPPERS = 0x0101010101010101, 0x8080808080808080, 0x7F7F7F7F7F7F7F7F, 0xF0F0F0F0F0F0F0F0
_CASES, _OPENS = _CASE * _LOWS, _OPEN * _LOWS
"""Words with the same bits in each of their eight bytes."""


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


@inlined
def _is_simple(base: Any, at: Any, end: Any, most: Any) -> Any:
    """Return whether the bytes have at most `most` opening marks, and whether none is below 16. Reads words."""
    opened, control = np.uint64(0), np.uint64(0)
    while at + 8 <= end:
        word = load_word(base + at)
        unlike = (word | np.uint64(_CASES)) ^ np.uint64(_OPENS)
        # The highest bit of a byte of this word is set if and only if the byte is not an opening mark.
        unlike |= (unlike & np.uint64(_SEVENS)) + np.uint64(_SEVENS)
        opened += (((~unlike & np.uint64(_HIGHS)) >> np.uint64(7)) * np.uint64(_LOWS)) >> np.uint64(56)
        # A byte below 16, such as a line break, has no bit in the upper half.
        upper = word & np.uint64(_UPPERS)
        control |= (upper - np.uint64(_LOWS)) & ~upper & np.uint64(_HIGHS)
        at += 8
    while at < end:
        byte = load_byte(base + at)
        opened += np.uint64((byte | np.uint64(_CASE)) == np.uint64(_OPEN))
        control |= np.uint64(byte < np.uint64(16))
        at += 1
    return opened <= np.uint64(most), control == np.uint64(0)


@inlined
def _has_break(base: Any, at: Any, end: Any) -> Any:
    """Return whether the bytes have a line break."""
    found = False
    while at < end:
        byte = load_byte(base + at)
        found |= byte in (np.uint64(_LF), np.uint64(_CR))
        at += 1
    return found


@kernel("void(u1[], i8[], i8[], i8, u1[]!)")
def _find_shapes(data: Any, starts: Any, lengths: Any, most: Any, shapes: Any) -> None:
    base = address_of(data)
    for i in range(len(starts)):
        if lengths[i] < 0:
            shapes[i] = NOT_THERE
            continue
        begin, end = starts[i], starts[i] + lengths[i]
        few, visible = _is_simple(base, begin, end, most)
        plain = lengths[i] > 1 and few and (visible or not _has_break(base, begin, end))
        if plain:
            plain = data[begin] == _OPEN and data[end - 1] == _CLOSE
        shapes[i] = PLAIN if plain else OTHER
