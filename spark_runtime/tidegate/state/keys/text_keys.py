"""Keys of one text or binary column as ranges of bytes in Arrow's own buffers, without canonical bytes (S5.1).

The hash is the same as over canonical bytes. Such keys are equal where their bytes and hashes are: the hash alone
distinguishes null from empty text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.state.byte_words import AHEAD_BYTES, address_of, prefetch
from tidegate.state.keys.key_bytes import BINARY_TAG, STRING_TAG, Bytes, Int64s, valid_mask
from tidegate.state.keys.key_types import is_text_type, stored_array, stored_type
from tidegate.state.keys.xxh64 import xxh64_tagged
from tidegate.state.numba_kernels import kernel

Hashes = npt.NDArray[np.uint64]

NULL_HASH = np.uint64(0xE934A84ADB052768)
"""Hash of a null key: xxh64 of its one canonical byte, 0."""
MAX_TEXT_BYTES = 2**31 - 1
"""Most bytes of an array with 32-bit offsets."""


@dataclass(frozen=True)
class TextRanges:
    """Row i is data[starts[i]:ends[i]], which is empty where null.

    Attributes:
        tag: of the canonical bytes.
        valid: False where null; None: no nulls.
    """

    tag: int
    data: Bytes
    starts: Int64s
    ends: Int64s
    valid: npt.NDArray[np.bool_] | None

    def hashes(self) -> Hashes:
        """Return xxh64 of the canonical bytes of each row."""
        out = np.empty(len(self.starts), np.uint64)
        hash_texts(self.tag, self.data, self.starts, self.ends, out)
        if self.valid is not None:
            out[~self.valid] = NULL_HASH
        return out


def is_ranged(type_: pa.DataType) -> bool:
    """Return whether a key column of this type has `text_keys`: text or binary of any width, or a dictionary of it."""
    stored = stored_type(type_)
    return bool(is_text_type(stored) or pt.is_binary(stored) or pt.is_large_binary(stored))


def text_keys(array: pa.Array) -> tuple[TextRanges, Hashes]:
    """Return the bytes and the hash of each row of a column with `is_ranged`.

    Values of a dictionary are neither copied nor hashed more than once each.
    """
    if not pt.is_dictionary(array.type):
        ranges = _ranges(stored_array(array))
        return ranges, ranges.hashes()
    valid = valid_mask(array) if array.indices.null_count else None
    indices = array.indices if valid is None else array.indices.fill_null(0)
    values = _ranges(stored_array(array.dictionary))
    if not len(values.starts):  # all rows are null: index 0 would not exist
        values = _ranges(pa.array([None], stored_type(array.type)))
    chosen = indices.to_numpy(zero_copy_only=False)
    starts, ends = values.starts[chosen], values.ends[chosen]
    if values.valid is not None:
        valid = values.valid[chosen] if valid is None else valid & values.valid[chosen]
    if valid is not None:
        ends = np.where(valid, ends, starts)
    rows = TextRanges(values.tag, values.data, starts, ends, valid)
    if len(values.starts) >= len(chosen):
        return rows, rows.hashes()
    hashes = values.hashes()[chosen]
    if valid is not None:
        hashes[~valid] = NULL_HASH
    return rows, hashes


def text_array(type_: pa.DataType, ends: Int64s, hashes: Hashes, data: Bytes) -> pa.Array:
    """Return an array of texts that follow one another in `data`: text i is data[ends[i]:ends[i + 1]].

    No copy of the text. A text is null where it is empty and its hash is `NULL_HASH`.

    Raises:
        pa.ArrowInvalid: the texts have more than 2 GiB, and `type_` is not a large type.
    """
    first, last = int(ends[0]), int(ends[-1])
    offsets = ends - first
    is_null = hashes == NULL_HASH
    if is_null.any():
        is_null &= np.diff(ends) == 0
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    bytes_of = pa.py_buffer(data[first:last])
    is_text = is_text_type(type_)
    is_large = pt.is_large_string(type_) or pt.is_large_binary(type_)
    if not is_large and last - first <= MAX_TEXT_BYTES:
        return pa.Array.from_buffers(type_, len(hashes), [valid, pa.py_buffer(offsets.astype(np.int32)), bytes_of])
    large = pa.large_string() if is_text else pa.large_binary()
    return pa.Array.from_buffers(large, len(hashes), [valid, pa.py_buffer(offsets), bytes_of]).cast(type_)


def _ranges(array: pa.Array) -> TextRanges:
    tag = STRING_TAG if is_text_type(array.type) else BINARY_TAG
    wide = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    _, offsets_buffer, data_buffer = array.buffers()
    if offsets_buffer is None or not len(array):
        nothing = np.zeros(0, np.int64)
        return TextRanges(tag, np.zeros(0, np.uint8), nothing, nothing, None)
    dtype = np.dtype(np.int64 if wide else np.int32)
    offsets = np.frombuffer(offsets_buffer, dtype, len(array) + 1, array.offset * dtype.itemsize).astype(np.int64)
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    starts, ends = offsets[:-1], offsets[1:]
    if not array.null_count:
        return TextRanges(tag, data, starts, ends, None)
    valid = valid_mask(array)
    return TextRanges(tag, data, starts, np.where(valid, ends, starts), valid)  # bytes under a null mean nothing


@kernel("void(u1, u1[], i8[], i8[], u8[]!)")
def hash_texts(tag: Any, data: Any, starts: Any, ends: Any, out: Any) -> None:
    """Compute the hash of each text with its tag."""
    base = address_of(data)
    for i in range(len(out)):
        prefetch(base + starts[i] + AHEAD_BYTES)
        out[i] = xxh64_tagged(tag, base + starts[i], ends[i] - starts[i])
