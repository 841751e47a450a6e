"""Many byte strings in one buffer: keys and rows on the way to and from a key-value store.

A Python object per row is created only where a call of the store needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.byte_words import address_of, copy_bytes
from tidegate.state.keys.key_bytes import Bytes, Int64s
from tidegate.state.numba_kernels import kernel

_NO_BYTES = np.zeros(0, np.uint8)


@dataclass(frozen=True)
class ByteRows:
    """Rows of bytes: row i is data[starts[i]:starts[i] + lengths[i]]; it is missing if starts[i] < 0.

    Attributes:
        data: shared buffer; its owner must not write to the bytes of existing rows.
        starts: int64.
        lengths: int64; 0 where missing.
    """

    data: Bytes
    starts: Int64s
    lengths: Int64s

    @classmethod
    def of(cls, data: Bytes, offsets: Int64s) -> ByteRows:
        """Return rows where row i is data[offsets[i]:offsets[i + 1]]."""
        return cls(data, np.ascontiguousarray(offsets[:-1]), np.diff(offsets))

    @classmethod
    def of_list(cls, rows: Sequence[bytes | None]) -> ByteRows:
        """Return rows from Python objects; None is missing."""
        is_missing = np.fromiter((row is None for row in rows), np.bool_, len(rows))
        present = [row for row in rows if row is not None] if is_missing.any() else cast(Sequence[bytes], rows)
        lengths = np.zeros(len(rows), np.int64)
        lengths[~is_missing] = np.fromiter(map(len, present), np.int64, len(present))
        starts = np.cumsum(lengths) - lengths
        starts[is_missing] = -1
        return cls(np.frombuffer(b"".join(present), np.uint8), starts, lengths)

    @classmethod
    def missing(cls, size: int) -> ByteRows:
        """Return `size` missing rows."""
        return cls(_NO_BYTES, np.full(size, -1, np.int64), np.zeros(size, np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Return which rows are not missing."""
        return self.starts >= 0

    def take(self, rows: Any) -> ByteRows:
        """Return the rows of these numbers, or where this mask is true; the bytes are not copied."""
        return ByteRows(self.data, self.starts[rows], self.lengths[rows])

    def packed(self) -> tuple[Bytes, Int64s]:
        """Return a copy of the bytes without gaps, and offsets, one more than rows. Missing rows are empty."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        _append(self.data, self.starts, self.lengths, data, offsets[:-1].copy())
        return data, offsets

    def to_list(self) -> list[bytes]:
        """Return the rows as Python objects; missing rows are empty."""
        if len(self) and self.starts[0] >= 0 and (self.starts[1:] == self.starts[:-1] + self.lengths[:-1]).all():
            data, offsets = self.data, np.append(self.starts, self.starts[-1] + self.lengths[-1])
        else:
            data, offsets = self.packed()
        width = int(self.lengths[0]) if len(self) else 0
        if width and (self.lengths == width).all():
            # Much faster than by Arrow.
            same: list[bytes] = data[offsets[0] : offsets[-1]].view(f"V{width}").tolist()
            return same
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        objects: list[bytes] = pa.Array.from_buffers(pa.large_binary(), len(self), buffers).to_pylist()
        return objects

    def order(self) -> npt.NDArray[np.int64]:
        """Return row numbers in approximate order of the bytes: by the first sixteen."""
        first, second = np.empty(len(self), np.uint64), np.empty(len(self), np.uint64)
        _leading(self.data, self.starts, self.lengths, first, second)
        order = np.argsort(first)
        ordered = first[order]
        # Keys of numbers differ in the first eight bytes already.
        return np.lexsort((second, first)) if (ordered[1:] == ordered[:-1]).any() else order


def join_bytes(*columns: ByteRows) -> ByteRows:
    """Return row i of all columns, concatenated. No row may be missing."""
    offsets = np.zeros(len(columns[0]) + 1, np.int64)
    for column in columns:
        offsets[1:] += column.lengths
    np.cumsum(offsets, out=offsets)
    data, cursor = np.empty(int(offsets[-1]), np.uint8), offsets[:-1].copy()
    for column in columns:
        _append(column.data, column.starts, column.lengths, data, cursor)
    return ByteRows.of(data, offsets)


def interleave(*parts: ByteRows) -> ByteRows:
    """Return the rows of all parts, one part after the other."""
    starts, base = [], 0
    for part in parts:
        starts.append(np.where(part.starts < 0, part.starts, part.starts + base))
        base += len(part.data)
    lengths = np.concatenate([part.lengths for part in parts])
    return ByteRows(np.concatenate([part.data for part in parts]), np.concatenate(starts), lengths)


def fixed_width_bytes(values: npt.NDArray[Any]) -> ByteRows:
    """Return each element of an array of fixed width as its bytes."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    width = values.dtype.itemsize
    return ByteRows(raw, np.arange(len(values), dtype=np.int64) * width, np.full(len(values), width, np.int64))


def frame(rows: ByteRows, offsets: Int64s) -> ByteRows:
    """Return one byte string for each group of rows: for every row its length as uint32, then its bytes.

    Args:
        rows: rows, none missing.
        offsets: group g has the rows offsets[g]:offsets[g + 1].
    """
    sizes = fixed_width_bytes(rows.lengths.astype("<u4"))
    joined = join_bytes(sizes, rows)
    return ByteRows.of(joined.data, np.append(joined.starts, len(joined.data))[offsets])


def unframe(groups: ByteRows) -> tuple[ByteRows, Int64s]:
    """Inverse of `frame`: return the rows, which share the groups' bytes, and offsets. A missing group has no rows."""
    counts = np.empty(len(groups) + 1, np.int64)
    counts[0] = 0
    _count_frames(groups.data, groups.starts, groups.lengths, counts)
    offsets = np.cumsum(counts)
    starts, lengths = np.empty(int(offsets[-1]), np.int64), np.empty(int(offsets[-1]), np.int64)
    _read_frames(groups.data, groups.starts, groups.lengths, starts, lengths)
    return ByteRows(groups.data, starts, lengths), offsets


@kernel("void(u1[], i8[], i8[], u1[]!, i8[]!)")
def _append(source: Any, starts: Any, lengths: Any, data: Any, cursor: Any) -> None:
    read, write = address_of(source), address_of(data)
    for i in range(len(starts)):
        copy_bytes(read + starts[i], write + cursor[i], lengths[i])
        cursor[i] += lengths[i]


@kernel("void(u1[], i8[], i8[], u8[]!, u8[]!)")
def _leading(data: Any, starts: Any, lengths: Any, first: Any, second: Any) -> None:
    for i in range(len(starts)):
        for part in range(2):
            word = np.uint64(0)
            for j in range(part * 8, part * 8 + 8):
                byte = data[starts[i] + j] if j < lengths[i] else np.uint8(0)
                word = (word << np.uint64(8)) | np.uint64(byte)
            if part == 0:
                first[i] = word
            else:
                second[i] = word


@kernel("void(u1[], i8[], i8[], i8[]!)")
def _count_frames(data: Any, starts: Any, lengths: Any, counts: Any) -> None:
    for i in range(len(starts)):
        count = 0
        at = starts[i]
        end = starts[i] + lengths[i]
        while at < end:
            length = np.int64(0)
            for j in range(4):
                length |= np.int64(data[at + j]) << (8 * j)
            at += 4 + length
            count += 1
        counts[i + 1] = count


@kernel("void(u1[], i8[], i8[], i8[]!, i8[]!)")
def _read_frames(data: Any, starts: Any, lengths: Any, row_starts: Any, row_lengths: Any) -> None:
    row = 0
    for i in range(len(starts)):
        at = starts[i]
        end = starts[i] + lengths[i]
        while at < end:
            length = np.int64(0)
            for j in range(4):
                length |= np.int64(data[at + j]) << (8 * j)
            row_starts[row] = at + 4
            row_lengths[row] = length
            at += 4 + length
            row += 1
