"""Check of UTF-8, for many texts at once, by a compiled kernel that names each invalid one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.arrow.arrow_buffers import ranges_of
from tidegate.state.byte_words import address_of, load_byte, load_half, load_word
from tidegate.state.numba_kernels import inlined, kernel

Int64s = npt.NDArray[np.int64]
_NOT_ASCII = 0x8080808080808080
_NOT_ASCII_HALF = 0x80808080


def invalid_texts(values: pa.Array) -> Int64s:
    """Return the indices of the values of a `binary` array that are no UTF-8. A null is none of them."""
    starts, lengths, data = ranges_of(values)
    return invalid_ranges(data, starts, lengths.astype(np.int64))


def invalid_ranges(data: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the numbers of the ranges of `data` that are no UTF-8. Ranges of a length <= 0 are valid."""
    found = np.empty(len(starts), np.int64)
    return found[: _find_invalid(data, starts, lengths, found)]


@inlined
def _is_ascii(address: Any, length: Any) -> Any:
    """Return whether all bytes are below 128."""
    seen = np.uint64(0)
    if length >= 8:
        last = length - 8
        at = 0
        while at < last:
            seen |= load_word(address + at)
            at += 8
        seen |= load_word(address + last)
        seen &= np.uint64(_NOT_ASCII)
    elif length >= 4:
        seen = (load_half(address) | load_half(address + length - 4)) & np.uint64(_NOT_ASCII_HALF)
    else:
        for i in range(length):
            seen |= load_byte(address + i)
        seen &= np.uint64(0x80)
    return seen == np.uint64(0)


@inlined
def _second_bytes(lead: Any) -> Any:
    """Return how many bytes follow the first one of a character, and the bounds of the second; 0 bytes: not a first
    byte. Source: RFC 3629, section 4.
    """
    low, high = np.uint8(0x80), np.uint8(0xBF)
    if lead == 0xE0:
        low = np.uint8(0xA0)
    if lead == 0xF0:
        low = np.uint8(0x90)
    if lead == 0xED:
        high = np.uint8(0x9F)
    if lead == 0xF4:
        high = np.uint8(0x8F)
    known = 0xC2 <= lead <= 0xF4
    more = (np.int64(1) + np.int64(lead >= 0xE0) + np.int64(lead >= 0xF0)) * np.int64(known)
    return more, low, high


@kernel("i8(u1[], i8[], i8[], i8[]!)")
def _find_invalid(data: Any, starts: Any, lengths: Any, found: Any) -> Any:
    """Write the numbers of invalid ranges, and return how many there are."""
    base = address_of(data)
    count = np.int64(0)
    for i in range(len(starts)):
        if lengths[i] <= 0 or _is_ascii(base + starts[i], lengths[i]):
            continue
        at, end, valid = starts[i], starts[i] + lengths[i], True
        while valid and at < end:
            lead = data[at]
            at += 1
            if lead < 0x80:
                continue
            more, low, high = _second_bytes(lead)
            valid = more > 0 and at + more <= end
            for j in range(more):
                if valid:
                    valid = low <= data[at + j] <= high
                    low, high = np.uint8(0x80), np.uint8(0xBF)
            at += more
        if not valid:
            found[count] = i
            count += 1
    return count
