"""A table of the heap back end: a row for each distinct key, found by an index, in copy-on-write columns (S5.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.arrow.arrow_columns import ALL, Chosen, Column, Positions, Take, new_column
from tidegate.state.copy_on_write import Arrays, CopyOnWriteArrays, Entries, FrozenArrays
from tidegate.state.heap.erasable_index import ErasableIndex, new_erasable
from tidegate.state.keys.key_index import KeyReader, Keys

GROUP = "group"
LIVE = "live"
USED = "used"


class HeapTable:
    """Rows by key. Entry numbers of removed rows are reused.

    Attributes:
        cells: columns that never change in a row: `GROUP` uint16, `LIVE` uint8, its key.
        values: columns that are overwritten: `USED` int64 milliseconds if there is a TTL, and all others. They are
            separate, because a write to a frozen chunk copies all arrays of a `CopyOnWriteArrays`.
        version: changes whenever a row is added or removed: entries found before may then be wrong.
    """

    def __init__(
        self,
        reader: KeyReader,
        key_types: Sequence[pa.DataType],
        value_types: Sequence[pa.DataType] = (),
        *,
        has_ttl: bool,
    ) -> None:
        """Create an empty table.

        Args:
            reader: reads the keys.
            key_types, value_types: types of the columns.
            has_ttl: keep `USED`.
        """
        self.version = 0
        self.index: ErasableIndex = new_erasable(reader)
        self.cells = CopyOnWriteArrays(self.index.capacity)
        self.cells.add(GROUP, np.uint16)
        self.cells.add(LIVE, np.uint8)
        self.values = CopyOnWriteArrays(self.index.capacity)
        if has_ttl:
            self.values.add(USED, np.int64)
        self._keys: list[Column] = [new_column(self.cells, f"key {i}", type_) for i, type_ in enumerate(key_types)]
        self._others: list[Column] = [new_column(self.values, str(i), type_) for i, type_ in enumerate(value_types)]

    @property
    def size(self) -> int:
        """Return the bound of the rows' entry numbers."""
        return self.index.size

    @property
    def value_columns(self) -> Sequence[Column]:
        """Return the columns that do not belong to the key. They have their arrays in `values`."""
        return self._others

    @property
    def row_bytes(self) -> int:
        """Return the approximate number of bytes of a row, on average."""
        logged = sum(column.logged_bytes for column in (*self._keys, *self._others))
        return self.cells.entry_bytes + self.values.entry_bytes + logged // max(self.size, 1)

    def find(self, keys: Keys) -> Entries:
        """Return the entry of each key, or -1."""
        return self.index.find(keys)

    def add(
        self, keys: Keys, rows: npt.NDArray[np.int64], key_arrays: Sequence[pa.Array], groups: npt.NDArray[np.uint16]
    ) -> Entries:
        """Add rows; the caller sets their other columns next.

        Args:
            keys: distinct keys.
            rows: rows of `keys` that are not in the table.
            key_arrays: a row for each of `keys`.
            groups: key group of each of `keys`.
        """
        entries = self.index.add(keys, rows)
        # The arrays grow first, because `touch` needs a stamp for the chunk of every entry.
        self.cells.grow(self.index.capacity)
        self.values.grow(self.index.capacity)
        self.cells.touch(entries)
        picked = None if len(rows) == len(groups) else pa.array(rows)
        for column, array in zip(self._keys, key_arrays, strict=True):
            column.put(entries, array if picked is None else array.take(picked))
        self.cells.arrays[GROUP][entries] = groups[rows]
        self.cells.arrays[LIVE][entries] = 1
        self.version += 1
        return entries

    def put(self, entries: Positions, values: Sequence[pa.Array]) -> None:
        """Set the columns that do not belong to the key, of distinct rows. Touches `values`."""
        self.values.touch(entries)
        for column, array in zip(self._others, values, strict=True):
            column.put(entries, array)

    def remove(self, entries: Entries) -> None:
        """Remove distinct rows."""
        if not len(entries):
            return
        self.cells.touch(entries)
        self.values.touch(entries)
        self.index.erase(entries)
        self.cells.arrays[LIVE][entries] = 0
        for column in (*self._keys, *self._others):
            column.forget(entries)
            # Without any key, the logs can be dropped, and need no compaction.
            if not self.index.count:
                column.clear()
        self.version += 1

    def take(self, first: int, stop: int | None, entries: Positions) -> list[pa.Array]:
        """Return columns first..stop of some rows, key columns first; null where the entry is -1."""
        keys = [(column, self.cells) for column in self._keys]
        others = [(column, self.values) for column in self._others]
        return [column.take(cells.arrays, entries) for column, cells in [*keys, *others][first:stop]]

    def live(self, start: int, stop: int) -> Entries:
        """Return the entries of the rows in start..stop."""
        stop = min(stop, self.size)
        return (np.flatnonzero(self.cells.arrays[LIVE][start:stop]) + start).astype(np.int32)

    def freeze(self) -> FrozenTable:
        """Return the present rows."""
        takes = [column.pin() for column in (*self._keys, *self._others)]
        return FrozenTable(self.cells.freeze(self.size), self.values.freeze(self.size), takes)


class FrozenTable:
    """A table at one moment. Any thread may read it.

    Attributes:
        size: number of entries.
        stamps: stamp of each chunk; see `FrozenArrays`.
        takes: read each column of a chunk's arrays, key columns first.
    """

    def __init__(self, cells: FrozenArrays, values: FrozenArrays, takes: Sequence[Take]) -> None:
        self.size = cells.size
        self.stamps = cells.stamps + values.stamps  # stamps never decrease, so equal sums mean that both are equal
        self.takes = takes
        self._cells, self._values = cells, values

    @property
    def chunks(self) -> int:
        """Return the number of chunks."""
        return len(self.stamps)

    def read(self, chunk: int) -> Arrays:
        """Return the arrays of a chunk; see `FrozenArrays`."""
        return {**self._cells.read(chunk), **self._values.read(chunk)}


def live_rows(arrays: Arrays) -> Chosen:
    """Return the positions of the rows of a chunk."""
    live = arrays[LIVE]
    return ALL if live.all() else np.flatnonzero(live)
