"""A table of the heap back end: a row for each distinct key, found by an index, in copy-on-write columns (S5.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.arrow_columns import Column, Positions, Take, new_column
from tidegate.state.columns import Arrays, Cells, Entries, FrozenCells
from tidegate.state.erasable_index import ErasableIndex, new_erasable
from tidegate.state.keyindex import KeyReader, Keys

GROUP = "group"
LIVE = "live"
USED = "used"

FrozenRows = Callable[[int], tuple[Arrays, Positions]]


class HeapTable:
    """Rows by key. Entry numbers of removed rows are given out again.

    Attributes:
        cells: arrays of the rows: `GROUP` uint16, `LIVE` uint8, `USED` int64 milliseconds where there is a TTL.
        version: another number whenever a row came or went: entries found before may be wrong then.
    """

    def __init__(self, reader: KeyReader, types: Sequence[pa.DataType], *, has_ttl: bool) -> None:
        """Args: reader: reads the keys. types: of the columns, those of the key first. has_ttl: keep `USED`."""
        self.version = 0
        self.index: ErasableIndex = new_erasable(reader)
        self.cells = Cells(self.index.capacity)
        self.cells.add(GROUP, np.uint16)
        self.cells.add(LIVE, np.uint8)
        if has_ttl:
            self.cells.add(USED, np.int64)
        self.columns: list[Column] = [new_column(self.cells, str(i), type_) for i, type_ in enumerate(types)]

    @property
    def arrays(self) -> Arrays:
        """The live arrays."""
        return self.cells.arrays

    @property
    def size(self) -> int:
        """Rows have entries below."""
        return self.index.size

    def find(self, keys: Keys) -> Entries:
        """Entry of each key, or -1."""
        return self.index.find(keys)

    def add(
        self, keys: Keys, rows: npt.NDArray[np.int64], key_arrays: Sequence[pa.Array], groups: npt.NDArray[np.uint16]
    ) -> Entries:
        """New rows; their other columns are to be put next.

        Args:
            keys: distinct.
            rows: of `keys`; those are not in the table.
            key_arrays: a row for each of `keys`.
            groups: key group of each of `keys`.
        """
        entries = self.index.add(keys, rows)
        self.cells.grow(self.index.capacity)
        self.cells.touch(entries)
        picked = None if len(rows) == len(groups) else pa.array(rows)
        for column, array in zip(self.columns, key_arrays, strict=False):
            column.put(entries, array if picked is None else array.take(picked))
        self.arrays[GROUP][entries] = groups[rows]
        self.arrays[LIVE][entries] = 1
        self.version += 1
        return entries

    def put(self, entries: Positions, first: int, values: Sequence[pa.Array]) -> None:
        """Set columns from number `first` on, of distinct rows."""
        self.cells.touch(entries)
        for column, array in zip(self.columns[first:], values, strict=True):
            column.put(entries, array)

    def remove(self, entries: Entries) -> None:
        """Take out distinct rows."""
        if not len(entries):
            return
        self.cells.touch(entries)
        self.index.erase(entries)
        self.arrays[LIVE][entries] = 0
        for column in self.columns:
            column.forget(entries)
            if not self.index.count:
                column.clear()
        self.version += 1

    def take(self, first: int, stop: int, entries: Positions) -> list[pa.Array]:
        """Columns first..stop of some rows; null where the entry is -1."""
        return [column.take(self.arrays, entries) for column in self.columns[first:stop]]

    def live(self, start: int, stop: int) -> Entries:
        """Entries of the rows there are among start..stop."""
        stop = min(stop, self.size)
        return (np.flatnonzero(self.arrays[LIVE][start:stop]) + start).astype(np.int32)

    def freeze(self) -> tuple[FrozenCells, list[Take]]:
        """The rows as they are now, and what reads each column of their chunks."""
        return self.cells.freeze(self.size), [column.pin() for column in self.columns]


def live_by_group(arrays: Arrays) -> npt.NDArray[np.int64]:
    """Positions of the rows of a chunk, by key group, stable."""
    rows = np.flatnonzero(arrays[LIVE])
    return rows[np.argsort(arrays[GROUP][rows], kind="stable")]
