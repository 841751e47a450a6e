"""Arrow columns kept in flat arrays: any entry can be read and written, many in one call.

A column of a fixed width is an array of its raw values. Strings, binary, lists and maps are two arrays, start and
length, into a log of bytes or elements that only grows: a frozen version keeps the log it saw. Overwritten and
forgotten values stay in the log until they are more than half of it; then the log is rewritten. A struct consists of
its fields. Every column has its arrays in a `CopyOnWriteArrays` of the owner, under names that begin with the column's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import PipelineError
from tidegate.state.arrow.array_limits import in_parts, require_fits
from tidegate.state.arrow.arrow_buffers import (
    bitmap,
    expand_ranges,
    fixed_column_array,
    fixed_width,
    has_offsets,
    is_binary_like,
    ranged_array,
    ranges_of,
    raw_fixed,
)
from tidegate.state.byte_words import gather_bytes
from tidegate.state.copy_on_write import Arrays, CopyOnWriteArrays
from tidegate.state.keys.key_bytes import valid_mask

COMPACT_BYTES = 1 << 20
"""Logs with fewer dead bytes or elements than this are not rewritten."""
COPIED_ROWS = 256 * 1024
"""Rows copied at a time from log to log."""
ABSENT = -1
"""Entry number for which a column returns null."""

Positions: TypeAlias = npt.NDArray[Any]
"""Entry numbers, int32 or int64; distinct where they are written."""
ALL = slice(None)
"""Every entry of arrays, in their order; without a copy for values of a fixed width."""
Chosen: TypeAlias = Positions | slice
"""Entry numbers, or `ALL`."""
Take: TypeAlias = Callable[[Arrays, Chosen], pa.Array]
"""Returns the values of some entries of arrays; null for `ABSENT`."""
Gather: TypeAlias = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], Any]


class Column(Protocol):
    """One column. `cells` is the `CopyOnWriteArrays` it was made for."""

    type: pa.DataType

    def put(self, positions: Chosen, array: pa.Array) -> None:
        """Set entries that were touched."""

    def forget(self, positions: Chosen) -> None:
        """Release the values of entries; the entries may be set again."""

    def take(self, arrays: Arrays, positions: Chosen) -> pa.Array:
        """Return the values of entries of `arrays`, which are the live arrays."""

    def pin(self) -> Take:
        """Return `take` for the arrays of a version that is frozen now; for any thread."""

    def clear(self) -> None:
        """Release all values."""

    @property
    def logged_bytes(self) -> int:
        """Return the approximate number of bytes outside of `cells`, including released ones."""


def new_column(cells: CopyOnWriteArrays, name: str, type_: pa.DataType, *, compacts: bool = True) -> Column:
    """Return a column in new arrays of `cells`.

    Args:
        name: prefix of the arrays' names.
        compacts: entries are overwritten; False: each is written once.

    Raises:
        PipelineError: state cannot hold this type.
    """
    if pt.is_struct(type_):
        return StructColumn(cells, name, type_, compacts)
    if has_offsets(type_):
        return RangedColumn(cells, name, type_, compacts)
    if (width := fixed_width(type_)) is not None:
        return FixedColumn(cells, name, type_, width, written_once=not compacts)
    raise PipelineError(
        f"state column {name!r} cannot have type {type_}",
        cause="states can hold numbers, booleans, times, decimals, strings, binary, and lists, maps and "
        "structs of these",
        remedy="Cast the column to one of these types",
    )


class FixedColumn:
    """Raw values, and 0 or 1 for validity.

    Attributes:
        width: bytes of a value.
    """

    def __init__(
        self, cells: CopyOnWriteArrays, name: str, type_: pa.DataType, width: int, *, written_once: bool = False
    ) -> None:
        self.type = type_
        self.width = width
        # Entries that are not set yet are null, too. With `written_once`, nobody takes them.
        self._may_have_nulls = not written_once
        self._cells = cells
        self._name, self._valid = name, f"{name}?"
        # numpy has no integers of other widths: values such as decimals are moved as raw bytes.
        self._dtype = np.dtype(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}")
        cells.add(self._name, self._dtype)
        cells.add(self._valid, np.uint8)

    @property
    def array_names(self) -> tuple[str, str]:
        """Return the names of the arrays of values and of validity."""
        return self._name, self._valid

    def put(self, positions: Chosen, array: pa.Array) -> None:
        """See `Column`."""
        self._cells.arrays[self._name][positions] = raw_fixed(array, self._dtype)
        if array.null_count:
            self._may_have_nulls = True
            self._cells.arrays[self._valid][positions] = valid_mask(array)
        else:
            self._cells.arrays[self._valid][positions] = 1

    def forget(self, positions: Chosen) -> None:
        """See `Column`."""

    def clear(self) -> None:
        """See `Column`."""

    @property
    def logged_bytes(self) -> int:
        """See `Column`."""
        return 0

    def take(self, arrays: Arrays, positions: Chosen) -> pa.Array:
        """See `Column`."""
        present, at = _present(positions)
        if present is None and not self._may_have_nulls:
            return fixed_column_array(self.type, arrays[self._name][at], None)
        valid = arrays[self._valid][at]
        if present is not None:
            valid &= present
        return fixed_column_array(self.type, arrays[self._name][at], valid)

    def pin(self) -> Take:
        """See `Column`."""
        return self.take


class RangedColumn:
    """Start and length of each value in a log; length -1 where null."""

    def __init__(self, cells: CopyOnWriteArrays, name: str, type_: pa.DataType, compacts: bool) -> None:
        self.type = type_
        self._cells = cells
        self._start, self._length = f"{name}@", f"{name}#"
        self._compacts = compacts
        self._log = _new_log(type_)
        self._dead = 0
        cells.add(self._start, np.int64)
        cells.add(self._length, np.int32, -1)

    def put(self, positions: Chosen, array: pa.Array) -> None:
        """See `Column`."""
        starts, lengths, values = ranges_of(array)
        if self._compacts:
            # Released before the log is compacted, so that the former values are not copied.
            self.forget(positions)
            self._compact(len(values))
        starts += self._log.append(values)
        self._cells.arrays[self._start][positions] = starts
        self._cells.arrays[self._length][positions] = lengths

    def forget(self, positions: Chosen) -> None:
        """See `Column`."""
        lengths = self._cells.arrays[self._length]
        self._dead += int(np.maximum(lengths[positions], 0).sum())
        lengths[positions] = -1

    def clear(self) -> None:
        """See `Column`."""
        self._log = _new_log(self.type)
        self._dead = 0

    @property
    def logged_bytes(self) -> int:
        """See `Column`."""
        return self._log.held_bytes

    def take(self, arrays: Arrays, positions: Chosen) -> pa.Array:
        """See `Column`."""
        return self._take(self._log.gather, arrays, positions)

    def pin(self) -> Take:
        """See `Column`."""
        gather = self._log.pin()
        return lambda arrays, positions: self._take(gather, arrays, positions)

    def _take(self, gather: Gather, arrays: Arrays, positions: Chosen) -> pa.Array:
        present, at = _present(positions)
        lengths = arrays[self._length][at]
        valid = (lengths >= 0) if present is None else (lengths >= 0) & present
        lengths = np.where(valid, lengths, 0).astype(np.int64)
        require_fits(self.type, int(lengths.sum()))
        return ranged_array(self.type, lengths, gather(arrays[self._start][at], lengths), valid)

    def _compact(self, more: int) -> None:
        if self._dead <= COMPACT_BYTES or 2 * self._dead <= self._log.size + more:
            return
        starts = self._cells.arrays[self._start]
        lengths = np.maximum(self._cells.arrays[self._length], 0).astype(np.int64)
        log = _new_log(self.type)
        # In parts, because the content of the whole log may not fit into one Arrow array.
        for values in in_parts(lambda at: self._log.gather(starts[at], lengths[at]), ALL, len(lengths)):
            log.append(values)
        # Replaced and not overwritten: a frozen version still reads the former starts, which belong to the log that it
        # pinned.
        self._cells.replace(self._start, np.cumsum(lengths) - lengths)
        self._log, self._dead = log, 0


class StructColumn:
    """A column for each field, and validity."""

    def __init__(self, cells: CopyOnWriteArrays, name: str, type_: pa.DataType, compacts: bool) -> None:
        self.type = type_
        self._cells = cells
        self._valid = f"{name}?"
        cells.add(self._valid, np.uint8)
        self._fields = [
            new_column(cells, f"{name}.{i}", field.type, compacts=compacts) for i, field in enumerate(type_.fields)
        ]

    def put(self, positions: Chosen, array: pa.Array) -> None:
        """See `Column`."""
        self._cells.arrays[self._valid][positions] = valid_mask(array) if array.null_count else 1
        for i, column in enumerate(self._fields):
            column.put(positions, array.field(i))

    def forget(self, positions: Chosen) -> None:
        """See `Column`."""
        for column in self._fields:
            column.forget(positions)

    def clear(self) -> None:
        """See `Column`."""
        for column in self._fields:
            column.clear()

    @property
    def logged_bytes(self) -> int:
        """See `Column`."""
        return sum(column.logged_bytes for column in self._fields)

    def take(self, arrays: Arrays, positions: Chosen) -> pa.Array:
        """See `Column`."""
        return self._take([column.take for column in self._fields], arrays, positions)

    def pin(self) -> Take:
        """See `Column`."""
        takes = [column.pin() for column in self._fields]
        return lambda arrays, positions: self._take(takes, arrays, positions)

    def _take(self, takes: Sequence[Take], arrays: Arrays, positions: Chosen) -> pa.Array:
        present, at = _present(positions)
        valid = arrays[self._valid][at] != 0
        if present is not None:
            valid &= present
        children = [take(arrays, positions) for take in takes]
        return pa.Array.from_buffers(self.type, len(valid), [bitmap(valid)], children=children)


class _ByteLog:
    """Log of bytes that only grows."""

    def __init__(self) -> None:
        self.size = 0
        self._bytes = np.empty(1024, np.uint8)

    @property
    def held_bytes(self) -> int:
        return self.size

    def append(self, values: npt.NDArray[np.uint8]) -> int:
        start, self.size = self.size, self.size + len(values)
        if self.size > len(self._bytes):
            # A new array, because a frozen version keeps reading the former one.
            grown = np.empty(max(self.size, 2 * len(self._bytes)), np.uint8)
            grown[:start] = self._bytes[:start]
            self._bytes = grown
        self._bytes[start : self.size] = values
        return start

    def gather(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        return gather_bytes(self._bytes, starts, lengths)

    def pin(self) -> Gather:
        held = self._bytes
        return lambda starts, lengths: gather_bytes(held, starts, lengths)


class WriteOnceRows:
    """Rows of some columns; each row is written once and never changes afterwards.

    Attributes:
        size: number of rows.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.size = 0
        self._cells = CopyOnWriteArrays(64)
        self._columns = [new_column(self._cells, str(i), type_, compacts=False) for i, type_ in enumerate(types)]

    @property
    def held_bytes(self) -> int:
        """Return the approximate number of bytes."""
        return self.size * self._cells.entry_bytes + sum(column.logged_bytes for column in self._columns)

    def reserve(self, rows: int) -> int:
        """Make room for `rows` rows at the end, and return the number of the first one."""
        start, self.size = self.size, self.size + rows
        if self.size > self._cells.capacity:
            self._cells.grow(max(self.size, 2 * self._cells.capacity))
        return start

    def write(self, positions: Chosen, arrays: Sequence[pa.Array]) -> None:
        """Set reserved rows, each once."""
        for column, array in zip(self._columns, arrays, strict=True):
            column.put(positions, array)

    def take(self, positions: Chosen) -> list[pa.Array]:
        """Return rows by number."""
        return [column.take(self._cells.arrays, positions) for column in self._columns]

    def last(self, positions: Positions) -> pa.Array:
        """Return only the last column of rows by number."""
        return self._columns[-1].take(self._cells.arrays, positions)

    def copy(self, source: WriteOnceRows, positions: Positions, to: Positions) -> None:
        """Set reserved rows to rows of another log, or of this one."""
        for start in range(0, len(positions), COPIED_ROWS):
            part = np.arange(start, min(start + COPIED_ROWS, len(positions)))
            for rows, arrays in in_parts(lambda rows: (rows, source.take(positions[rows])), part):
                self.write(to[rows], arrays)

    def pin(self) -> Callable[[Chosen], list[pa.Array]]:
        """Return `take` for the present rows; for any thread."""
        # The dict is copied, because growth puts other arrays into the live one.
        arrays, takes = dict(self._cells.arrays), [column.pin() for column in self._columns]
        return lambda positions: [take(arrays, positions) for take in takes]


class _ElementLog:
    """Log of elements of one type that only grows."""

    def __init__(self, type_: pa.DataType) -> None:
        self._rows = WriteOnceRows([type_])

    @property
    def size(self) -> int:
        return self._rows.size

    @property
    def held_bytes(self) -> int:
        return self._rows.held_bytes

    def append(self, values: pa.Array) -> int:
        start = self._rows.reserve(len(values))
        self._rows.write(np.arange(start, start + len(values)), [values])
        return start

    def gather(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> pa.Array:
        return self._rows.take(expand_ranges(starts, lengths))[0]

    def pin(self) -> Gather:
        take = self._rows.pin()
        return lambda starts, lengths: take(expand_ranges(starts, lengths))[0]


def _present(positions: Chosen) -> tuple[npt.NDArray[np.bool_] | None, Chosen]:
    if isinstance(positions, slice) or not len(positions) or positions.min() >= 0:
        return None, positions
    # Any entry serves for an absent one, because `present` makes its value null. -1 would be the last entry, if there
    # is one.
    return positions >= 0, np.maximum(positions, 0)


def _new_log(type_: pa.DataType) -> _ByteLog | _ElementLog:
    if is_binary_like(type_):
        return _ByteLog()
    if pt.is_map(type_):
        return _ElementLog(pa.struct([type_.key_field, type_.item_field]))
    return _ElementLog(type_.value_type)
