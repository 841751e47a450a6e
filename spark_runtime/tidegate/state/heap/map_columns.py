"""Map states of the heap back end: a row for each pair of key and map key, and a chain of the rows of each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.copy_on_write import Entries
from tidegate.state.heap.frozen_state import FrozenState
from tidegate.state.heap.heap_table import USED, HeapTable
from tidegate.state.heap.value_columns import HeapState, Used, frozen_table
from tidegate.state.keyed_state import Elements, Found, KeyNumbers, KeySet, Mask, StateDescriptor
from tidegate.state.keys.key_index import BytesKeys, KeyReader
from tidegate.state.keys.key_sets import DistinctKeyRows, KeyBatch
from tidegate.state.numba_kernels import kernel

_HEAD = "head"


class HeapMap(HeapState):
    """See `MapState`. The table of the keys holds the head of each key's chain; chains are not part of snapshots."""

    def __init__(self, descriptor: StateDescriptor, keyed: DistinctKeyRows, now_ms: Callable[[], int]) -> None:
        super().__init__(descriptor, keyed, now_ms, HeapTable(keyed.reader, keyed.schema.types, has_ttl=False))
        self.table.values.add(_HEAD, np.int32)
        fields = [field.with_name(f"{i}") for i, field in enumerate([*keyed.schema, *descriptor.map_key])]
        self._pair_schema = pa.schema(fields)
        self._reader = KeyReader(self._pair_schema, self._pair_schema.names, canonical=True)
        self._rows = HeapTable(
            self._reader, self._pair_schema.types, self.columns.types, has_ttl=descriptor.ttl is not None
        )
        self._pair_width = len(self._pair_schema)
        self._last: tuple[KeyBatch, KeyNumbers, pa.RecordBatch, BytesKeys] | None = None
        self._links = np.zeros((3, 0), np.int32)  # for each row: the entry of its key, next row, previous row

    def get(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> Found:
        """See `MapState`."""
        entries = self._rows.find(self._pairs(keys, owners, map_keys))
        present = entries >= 0
        if self.lifetime is not None:
            present &= self.lifetime.alive(self._rows.values.arrays[USED][entries])
            if self.lifetime.on_read:
                self._use(entries[present])
        if not present.all():
            entries = np.where(present, entries, np.int32(-1))
        arrays = self._rows.take(self._pair_width, None, entries)
        return Found(present, pa.RecordBatch.from_arrays(arrays, schema=self.columns))

    def put(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch, columns: pa.RecordBatch) -> None:
        """See `MapState`."""
        self._put(keys, owners, map_keys, columns, None)

    def remove(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> None:
        """See `MapState`."""
        entries = self._rows.find(self._pairs(keys, owners, map_keys))
        self._drop(np.unique(entries[entries >= 0]))

    def entries(self, keys: KeySet) -> Elements:
        """See `MapState`."""
        counts, entries = self._alive(*self._chains(self.entries_of(keys)))
        if self.lifetime is not None and self.lifetime.on_read:
            self._use(entries)
        arrays = self._rows.take(self.key_width, None, entries)
        schema = pa.schema([*self.descriptor.map_key, *self.columns])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Elements(offsets, pa.RecordBatch.from_arrays(arrays, schema=schema))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `MapState`."""
        entries = self.entries_of(keys)
        entries = entries[entries >= 0 if where is None else (entries >= 0) & where]
        # The whole chain of each key goes, so that no row has to be unlinked.
        self._rows.remove(self._chains(entries)[1])
        self.table.remove(entries)

    def take_back(self, keys: KeyBatch, columns: pa.RecordBatch, used: Used) -> None:
        """Add rows of a snapshot: row i belongs to key `keys.rows[i]`."""
        arrays = columns.columns[1 + self.key_width :]
        width = len(self.descriptor.map_key)
        map_keys = pa.RecordBatch.from_arrays(arrays[:width], schema=self.descriptor.map_key)
        values = pa.RecordBatch.from_arrays(arrays[width : width + len(self.columns)], schema=self.columns)
        self._put(keys, keys.rows, map_keys, values, used)

    def freeze(self) -> FrozenState:
        """Return the present state."""
        return frozen_table(self._rows, self.descriptor.name, self.schema)

    def sweep(self, limit: int) -> None:
        """See `HeapState`; counts map entries."""
        if self.lifetime is None or not self._rows.size:
            return
        start = self._swept if self._swept < self._rows.size else 0
        self._swept = start + limit
        entries = self._rows.live(start, start + limit)
        self._drop(entries[~self.lifetime.alive(self._rows.values.arrays[USED][entries])])

    def _pairs(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> BytesKeys:
        """Return the pairs. The pairs of the last call are kept, because a read is often followed by a write."""
        assert isinstance(keys, KeyBatch), "keys of another back end"
        if self._last is not None:
            same_keys, same_owners, same_map_keys, pairs = self._last
            if same_keys is keys and same_map_keys is map_keys and np.array_equal(same_owners, owners):
                return pairs
        arrays = [array.take(pa.array(owners)) for array in keys.batch.columns]
        read = self._reader.read(pa.RecordBatch.from_arrays([*arrays, *map_keys.columns], schema=self._pair_schema))
        assert isinstance(read, BytesKeys)
        self._last = keys, owners.copy(), map_keys, read  # a copy: the caller may change its array
        return read

    def _put(
        self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch, columns: pa.RecordBatch, used: Used
    ) -> None:
        if not len(owners):
            return
        pairs = self._pairs(keys, owners, map_keys)
        index = self._reader.new_index(len(owners))
        numbers = np.empty(len(owners), np.int32)
        index.find_or_add(pairs, 0, len(owners), numbers)
        values = columns.columns
        if index.size < len(owners):
            last = np.empty(index.size, np.int64)
            last[numbers] = np.arange(len(owners))
            owners, picked = owners[last], pa.array(last)
            pairs = self._pairs(keys, owners, map_keys.take(picked))
            values = columns.take(picked).columns
            used = None if used is None else used[last]
        entries = self._rows.find(pairs)
        missing = np.flatnonzero(entries < 0)
        if len(missing):
            entries[missing] = self._add(keys, owners, pairs, missing)
        self._rows.put(entries, values)
        if self.lifetime is not None:
            self._rows.values.arrays[USED][entries] = self.lifetime.now_ms() if used is None else used

    def _add(self, keys: KeySet, owners: KeyNumbers, pairs: BytesKeys, missing: npt.NDArray[np.int64]) -> Entries:
        mine, of_rows = np.unique(owners[missing], return_inverse=True)
        # Found before `find_or_add`, which adds the missing keys.
        is_new = self.entries_of(keys)[mine] < 0
        entries = self.find_or_add(keys, mine)
        # A reused entry still has the head of the key that had it before.
        self.table.values.arrays[_HEAD][entries[is_new]] = -1
        assert pairs.columns is not None, "pairs have canonical bytes"
        rows = self._rows.add(pairs, missing, pairs.columns.columns, keys.groups[owners])
        if self._rows.cells.capacity > self._links.shape[1]:
            links = np.zeros((3, self._rows.cells.capacity), np.int32)
            links[:, : self._links.shape[1]] = self._links
            self._links = links
        self._links[0][rows] = entries[of_rows]
        _link(rows, self.table.values.arrays[_HEAD], *self._links)
        return rows

    def _drop(self, rows: Entries) -> None:
        if not len(rows):
            return
        heads = self.table.values.arrays[_HEAD]
        _unlink(rows, heads, *self._links)
        mine = np.unique(self._links[0][rows])
        self._rows.remove(rows)
        self.table.remove(mine[heads[mine] < 0])

    def _chains(self, entries: Entries) -> tuple[npt.NDArray[np.int64], Entries]:
        """Return the number of rows of each key, and the rows, including expired ones."""
        heads = np.where(entries >= 0, self.table.values.arrays[_HEAD][entries], np.int32(-1))
        counts = np.zeros(len(heads), np.int64)
        _count(heads, self._links[1], counts)
        rows = np.empty(int(counts.sum()), np.int32)
        _walk(heads, self._links[1], rows)
        return counts, rows

    def _alive(self, counts: npt.NDArray[np.int64], rows: Entries) -> tuple[npt.NDArray[np.int64], Entries]:
        if self.lifetime is None:
            return counts, rows
        alive = self.lifetime.alive(self._rows.values.arrays[USED][rows])
        owners = np.repeat(np.arange(len(counts)), counts)
        return np.bincount(owners[alive], minlength=len(counts)), rows[alive]

    def _holds(self, entries: Entries) -> Mask:
        return self._alive(*self._chains(entries))[0] > 0

    def _use(self, rows: Entries) -> None:
        assert self.lifetime is not None
        self._rows.values.touch(rows)
        self._rows.values.arrays[USED][rows] = self.lifetime.now_ms()


@kernel("void(i4[], i4[]!, i4[], i4[]!, i4[]!)")
def _link(rows: Any, heads: Any, owners: Any, following: Any, former: Any) -> None:
    """Put rows at the front of their owners' chains."""
    for i in range(len(rows)):
        row = rows[i]
        head = heads[owners[row]]
        following[row] = head
        former[row] = -1
        if head >= 0:
            former[head] = row
        heads[owners[row]] = row


@kernel("void(i4[], i4[]!, i4[], i4[]!, i4[]!)")
def _unlink(rows: Any, heads: Any, owners: Any, following: Any, former: Any) -> None:
    """Remove rows from their owners' chains."""
    for i in range(len(rows)):
        row = rows[i]
        before = former[row]
        after = following[row]
        if before >= 0:
            following[before] = after
        else:
            heads[owners[row]] = after
        if after >= 0:
            former[after] = before


@kernel("void(i4[], i4[], i8[]!)")
def _count(heads: Any, following: Any, counts: Any) -> None:
    for i in range(len(heads)):
        row = heads[i]
        while row >= 0:
            counts[i] += 1
            row = following[row]


@kernel("void(i4[], i4[], i4[]!)")
def _walk(heads: Any, following: Any, rows: Any) -> None:
    at = 0
    for i in range(len(heads)):
        row = heads[i]
        while row >= 0:
            rows[at] = row
            at += 1
            row = following[row]
