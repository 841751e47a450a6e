"""Decimals as canonical key bytes (S5.1): equal numbers have equal bytes, whatever their precision and scale.

A decimal is m * 10^-s where m is not a multiple of ten, or both are 0. Its bytes are s as int16, little endian, then
the fewest bytes that hold m in two's complement, little endian; none for 0. In this module, numbers are 256 bits wide:
four words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.numba_kernels import inlined, kernel

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

WORDS = 4
MAX_BYTES = 2 + 8 * WORDS
"""Most bytes of one decimal."""
MAX_PRECISION = 76


def decimal_bytes(array: pa.Array, valid: npt.NDArray[np.bool_]) -> tuple[Bytes, Int64s]:
    """Return the bytes of each row, none where null: row i is data[offsets[i]:offsets[i + 1]]."""
    wide = array.cast(pa.decimal256(MAX_PRECISION, array.type.scale))
    buffer = wide.buffers()[1]
    rows = len(wide)
    words = np.zeros(WORDS * rows, np.int64)
    if buffer is not None:
        words[:] = np.frombuffer(buffer, np.int64, WORDS * rows, wide.offset * 8 * WORDS)
    data, offsets = np.empty(MAX_BYTES * rows, np.uint8), np.zeros(rows + 1, np.int64)
    write_decimals(words, valid.view(np.uint8), array.type.scale, data, offsets)
    return data[: offsets[-1]], offsets


def decimal_array(
    data: Bytes, starts: Int64s, lengths: Int64s, is_null: npt.NDArray[np.bool_] | None, type_: pa.DataType
) -> pa.Array:
    """Inverse of `decimal_bytes`: row i is data[starts[i]:starts[i] + lengths[i]], arbitrary where null."""
    words = np.zeros(WORDS * len(starts), np.int64)
    lengths = lengths if is_null is None else np.where(is_null, 0, lengths)
    read_decimals(data, starts, lengths, type_.scale, words)
    valid = None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    wide = pa.decimal256(MAX_PRECISION, type_.scale)
    return pa.Array.from_buffers(wide, len(starts), [valid, pa.py_buffer(words)]).cast(type_)


@inlined
def _negate(words: Any, first: Any) -> None:
    carry = True
    for j in range(4):
        word = ~words[first + j]
        words[first + j] = word + 1 if carry else word
        carry = carry and word == -1


@inlined
def _tenth(words: Any, first: Any, out: Any) -> Any:
    """Write a tenth of a non-negative number to `out`, and return the remainder."""
    rest = np.uint64(0)
    for k in range(4):
        word = np.uint64(words[first + 3 - k])
        # In halves of a word, because a remainder together with a whole word exceeds 64 bits.
        high = (rest << np.uint64(32)) | (word >> np.uint64(32))
        low = ((high % np.uint64(10)) << np.uint64(32)) | (word & np.uint64(0xFFFFFFFF))
        out[3 - k] = np.int64(((high // np.uint64(10)) << np.uint64(32)) | (low // np.uint64(10)))
        rest = low % np.uint64(10)
    return rest


@inlined
def _times_ten(words: Any, first: Any) -> None:
    carry = np.uint64(0)
    for j in range(4):
        word = np.uint64(words[first + j])
        low = (word & np.uint64(0xFFFFFFFF)) * np.uint64(10) + carry
        high = (word >> np.uint64(32)) * np.uint64(10) + (low >> np.uint64(32))
        words[first + j] = np.int64((high << np.uint64(32)) | (low & np.uint64(0xFFFFFFFF)))
        carry = high >> np.uint64(32)


@kernel("void(i8[], u1[], i8, u1[]!, i8[]!)")
def write_decimals(source: Any, valid: Any, scale: Any, data: Any, offsets: Any) -> None:
    """Write the bytes of decimals; source[4 * i:4 * i + 4] is row i, its lowest word first."""
    words, tenth = np.empty(4, np.int64), np.empty(4, np.int64)
    at = np.int64(0)
    for i in range(len(valid)):
        if valid[i]:
            for j in range(4):
                words[j] = source[4 * i + j]
            is_zero = (words[0] | words[1] | words[2] | words[3]) == 0
            is_negative = words[3] < 0
            of_row = np.int64(0) if is_zero else scale
            if is_negative:
                _negate(words, 0)
            # An odd number is no multiple of ten. The test saves the division.
            while not is_zero and words[0] & 1 == 0 and _tenth(words, 0, tenth) == np.uint64(0):
                for j in range(4):
                    words[j] = tenth[j]
                of_row -= 1
            if is_negative:
                _negate(words, 0)
            data[at] = np.uint8(of_row & 0xFF)
            data[at + 1] = np.uint8((of_row >> 8) & 0xFF)
            at += 2
            if not is_zero:
                filler = np.int64(0xFF) if is_negative else np.int64(0)
                length = 32
                going = True
                while going and length > 1:
                    top = (words[(length - 1) >> 3] >> (8 * ((length - 1) & 7))) & 0xFF
                    below = (words[(length - 2) >> 3] >> (8 * ((length - 2) & 7))) & 0xFF
                    # The top byte may go only if the sign bit of the byte below repeats it.
                    going = top == filler and (below >> 7) == (filler & 1)
                    if going:
                        length -= 1
                for j in range(length):
                    data[at + j] = np.uint8((words[j >> 3] >> (8 * (j & 7))) & 0xFF)
                at += length
        offsets[i + 1] = at


@kernel("void(u1[], i8[], i8[], i8, i8[]!)")
def read_decimals(data: Any, starts: Any, lengths: Any, scale: Any, out: Any) -> None:
    """Inverse of `write_decimals`, at a sufficient scale; a row of length 0 stays unchanged."""
    for i in range(len(starts)):
        length = lengths[i] - 2
        if length > 0:
            start = starts[i]
            of_row = np.int64(data[start]) | (np.int64(data[start + 1]) << 8)
            if of_row >= 32768:
                of_row -= 65536
            first = 4 * i
            is_negative = data[start + 2 + length - 1] >= 128
            for j in range(32):
                byte = np.int64(data[start + 2 + j]) if j < length else np.int64(0xFF if is_negative else 0)
                out[first + (j >> 3)] |= byte << (8 * (j & 7))
            if is_negative:
                _negate(out, first)
            while of_row < scale:
                _times_ten(out, first)
                of_row += 1
            if is_negative:
                _negate(out, first)
